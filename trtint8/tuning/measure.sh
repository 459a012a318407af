#!/bin/sh
# Builds the engines of the models in this folder with trtexec, and times them one after another.
# Copy the folder to the machine, run "sh measure.sh" there, and copy it back. What is there already is not
# made anew; what failed is tried again. Variables: TRTEXEC, the program; TRTEXEC_FLAGS, more options for it.
set -u
trap 'exit 130' HUP INT TERM
FIND_TRTEXEC
used="TensorRT $version with the flags '$flags'"
if [ -e measured-with.txt ] && [ "$(cat measured-with.txt)" != "$used" ]; then
    echo "this folder holds engines of $(cat measured-with.txt), and not of $used; measure in another one" >&2
    exit 2
fi
echo "$used: $program"
for name in NAMES; do rm -f "$name.failed"; done
for name in NAMES; do
    if [ -e "$name.engine" ]; then continue; fi
    # With --int8, trtexec makes up ranges for a model without Q/DQ pairs.
    case $form$name in
        typed*) types="" ;;
        weakFIRST) types="--fp16" ;;
        *) types="--int8 --fp16" ;;
    esac
    echo "building $name $types"
    # shellcheck disable=SC2086
    if ! "$program" --onnx="$name.$form.onnx" --saveEngine="$name.engine.part" $types $flags \
        --profilingVerbosity=detailed --exportLayerInfo="$name.layers.json" --iterations=1 --duration=0 \
        --warmUp=0 > "$name.log" 2>&1 || [ ! -e "$name.engine.part" ]; then
        echo "$name cannot be built, see $name.log" >&2
        touch "$name.failed"
        continue
    fi
    mv "$name.engine.part" "$name.engine"
    echo "$used" > measured-with.txt
done
# Prints the clocks of the GPU, if something here knows them.
clocks() {
    if command -v nvidia-smi > /dev/null; then
        nvidia-smi --query-gpu=clocks.sm,clocks.mem --format=csv,noheader 2> /dev/null | head -n 1 |
            sed 's/, /, memory /'
        return
    fi
    for rate in /sys/class/devfreq/*gpu*/cur_freq /sys/class/devfreq/*gp10b*/cur_freq \
        /sys/class/devfreq/*gv11b*/cur_freq /sys/class/devfreq/*ga10b*/cur_freq; do
        if [ -r "$rate" ]; then echo "$(($(cat "$rate") / 1000000)) MHz"; return; fi
    done
}
for round in ROUNDS; do
    for name in NAMES; do
        if [ -e "$name.failed" ] || [ -e "$name.BATCH-$round.json" ]; then continue; fi
        echo "timing $name, $round of LAST"
        # shellcheck disable=SC2086
        if "$program" --loadEngine="$name.engine" $flags --noDataTransfers --useCudaGraph --warmUp=200 \
            --duration=2 --exportTimes="$name.part" > "$name.run.log" 2>&1; then
            mv "$name.part" "$name.BATCH-$round.json"
            clocks > "$name.BATCH-$round.clocks"
        else
            echo "$name cannot be run, see $name.run.log" >&2
            touch "$name.failed"
        fi
    done
done
for name in NAMES; do
    if [ -e "$name.failed" ] || [ -e "$name.profile.json" ]; then continue; fi
    echo "timing the layers of $name"
    # shellcheck disable=SC2086
    if "$program" --loadEngine="$name.engine" $flags --noDataTransfers --dumpProfile --iterations=50 \
        --exportProfile="$name.part" > "$name.profile.log" 2>&1; then
        mv "$name.part" "$name.profile.json"
    else
        echo "the layers of $name cannot be timed, see $name.profile.log" >&2
    fi
done
echo "done; copy this folder back, and run the same command of trtint8 there"
