"""Everything about this project that only a GPU can show, run in stages that cannot disturb each other."""
