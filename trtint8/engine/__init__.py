"""Engine files and their contents: sidecar, plan, layers and optimization profiles."""
