# Sourced by the scripts beside it: `environment EXTRAS` makes .venv and installs the project into it.

environment() {
    local python
    for python in "${PYTHON:-}" python3.11 python3.10 python3.12 python3.13 python3; do
        [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
        python=
    done
    [ -n "$python" ] || { echo "trtint8 needs Python 3.10 or newer" >&2; return 1; }
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # Only when the extras or what is installed from changed: a second run starts at once.
    local stamp=.venv/.installed wanted
    wanted="$1 $(cat pyproject.toml setup.py trtint8/version.py calibrators/histograms/*.c | cksum)"
    if ! grep -qxF "$wanted" "$stamp" 2>/dev/null; then
        echo "Installing trtint8[$1] into .venv ..." >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$1]"
        echo "$wanted" >>"$stamp"
    fi
}
