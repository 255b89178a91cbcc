# shellcheck shell=bash
# bench-cpu under the preload: sourced by the parts that need no second GPU.

# cpu DRIVER ARGUMENT...: on the driver that does nothing (null), or on the
# simulated or real one (driver).
cpu() {
    local folder program=bench-cpu
    case $1 in
    null) folder=$BENCH_BUILD/tests/bench/null ;;
    driver) folder=$([ -n "$BENCH_REAL" ] || echo "$BENCH_SIM") ;;
    esac
    shift
    if [ "$1" = --new-uct ]; then
        program=bench-cpu-new
        shift
    fi
    if [ ! -x "$BENCH_BUILD/tests/bench/$program" ]; then
        echo "instructions are counted on x86-64 alone" >&2
        exit 77
    fi
    env "LD_PRELOAD=$BENCH_SHIM" \
        "LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        "$BENCH_BUILD/tests/bench/$program" "$@"
}

set -e
