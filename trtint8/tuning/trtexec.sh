program=${TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}
flags=${TRTEXEC_FLAGS:-}
case $program in
    /*) ;;
    */*) program=$(pwd)/$program ;;
esac
CDPATH= cd -- "$(dirname -- "$0")" || exit 2
if ! command -v "$program" > /dev/null; then
    echo "there is no program '$program'; set TRTEXEC to that of TensorRT" >&2
    exit 2
fi
version=$("$program" --help 2>&1 | sed -n 's/.*\[TensorRT v\([0-9]*\)\].*/\1/p' | head -n 1)
case $version in
    8[5-9]?? | 9??? | 9???? | 10????) form=weak ;;
    1[1-9]????) form=typed ;;
    *) echo "'$program' is of no TensorRT from 8.5 to 11 (it says '$version')" >&2; exit 2 ;;
esac
