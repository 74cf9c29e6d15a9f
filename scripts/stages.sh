# Stages of a run on a GPU whose time is short; sourced by the scripts for the Hopper kernels. Every
# stage has a limit of its own, and all of them end in time: what hangs or fails costs its stage, and
# the others go on. Whoever sources it has set `root` (of the repository), `binary` and `tests`
# (attnbench and test_cuda).
#
# STAGES_END: when all have to be over, in seconds since 1970; by default in nine minutes. STAGES_WORK: a
# folder in which the caller gathers what several scripts leave, instead of each packing its own.

STAGES_END=${STAGES_END:-$(($(date +%s) + 540))}
export STAGES_END
stages_status=0
# Test programs say which case they are at, so that the one that hangs is known.
export ATTNBENCH_TEST_PROGRESS=1

# begin_stages DIR: what they write goes to $work, which is packed into DIR/results.tar.gz at the end, also
# after an interrupt; DIR/stages.txt gets what is printed here.
begin_stages() {
  out=$1
  mkdir -p "$out"
  : >"$out/stages.txt"
  if [[ -n ${STAGES_WORK:-} ]]; then
    work=$STAGES_WORK/$(basename "$0")
    mkdir -p "$work"
    return
  fi
  work=$(mktemp -d)
  trap end_stages EXIT
}
end_stages() {
  tar -C "$work" -czf "$out/results.tar.gz" .
  rm -rf "$work"
}

# Prints a line, and keeps it.
report() { printf '%s\n' "$*" | tee -a "$out/stages.txt"; }

# stage NAME SECONDS COMMAND...: the output goes to $work/NAME.txt, and its end is shown on failure.
# Why the interrupt: a run that is interrupted writes the results that it has. An exit status of 3
# says that nothing of it can be run here.
stage() {
  local name=$1 limit=$2 begin left code=0 what=ok
  shift 2
  begin=$(date +%s)
  left=$((STAGES_END - begin - 10))
  ((limit <= left)) || limit=$left
  if ((limit < 5)); then
    report "$(printf '%-28s not started: no time was left' "$name")"
    stages_status=1
    return
  fi
  timeout --signal=INT --kill-after=10 "$limit" "$@" >"$work/$name.txt" 2>&1 </dev/null || code=$?
  case $code in
    0) ;;
    3) what="ok: some or all unsupported" ;;
    124 | 137) what="stopped after $limit s" && stages_status=1 ;;
    *) what="FAILED: exit status $code" && stages_status=1 ;;
  esac
  if [[ $code -eq 0 ]] && grep -q '^  MESSAGE: skipped' "$work/$name.txt"; then what=skipped; fi
  report "$(printf '%-28s %4d s  %s' "$name" $(($(date +%s) - begin)) "$what")"
  [[ $code -eq 0 || $code -eq 3 ]] || tail -n 15 "$work/$name.txt" | cut -c1-220 | sed 's/^/  | /'
}

# compile_first [SCENARIO_FILE BACKEND]...: a run compiles one kernel after the other, this those of all
# pairs side by side. What is not compiled here, the run compiles.
compile_first() {
  local left=$((STAGES_END - $(date +%s) - 10))
  ((left > 5)) || return 0
  printf '%s\0' "$@" | STAGES_BINARY=$binary timeout "$((left < 90 ? left : 90))" \
    xargs -0 -n 2 -P "$(nproc)" bash -c \
    '"$STAGES_BINARY" compile "$1" --device cuda --backend "$2" --quiet' _ >/dev/null 2>&1
}

# compile_parts SCENARIO [ARGUMENTS...]: the same of all pairs of a scenario.
compile_parts() {
  local parts part
  parts=$(nproc)
  for ((part = 1; part <= parts; part++)); do
    timeout 120 "$binary" compile "$@" --part "$part/$parts" --quiet >/dev/null 2>&1 &
  done
  wait
}

# timed NAME SECONDS SCENARIO_FILE BACKEND... [-- ARGUMENTS...]: backends in turns, and a table.
timed() {
  local name=$1 limit=$2 scenario=$3 pairs=() words=()
  shift 3
  while (($# > 0)) && [[ $1 != -- ]]; do
    pairs+=("$scenario" "$1")
    words+=(--backend "$1")
    shift
  done
  (($# == 0)) || shift
  compile_first "${pairs[@]}"
  stage "$name" "$limit" "$binary" run "$scenario" --device cuda --hang-limit 20 --no-progress \
    "${words[@]}" "$@" --json "$work/$name.json" --markdown "$work/$name.table"
  rates "$work/$name.json" | tee -a "$out/stages.txt"
}

# rates FILE: a line per case, backend and time of a result file.
rates() {
  [[ -f $1 ]] || return 0
  python3 - "$1" <<'PY'
import json
import sys

for result in json.load(open(sys.argv[1], encoding="utf-8"))["results"]:
    backend = result["backend"].rpartition(".")[2]
    line = f"  {result['case'][-44:]:<44} {backend[-44:]:<44} {result['status']:<11}"
    timing, rate = result.get("timing"), result.get("throughput")
    if timing and rate:
        line += (f" {timing['median_us']:9.1f} us {rate['tflops']:6.1f} TFLOP/s "
                 f"{rate['gbps']:6.0f} GB/s")  # fmt: skip
    elif result["reasons"]:
        line += " " + result["reasons"][0][:90]
    print(line)
PY
}

# counters NAME KERNEL SCENARIO_FILE BACKEND [ARGUMENTS...]: what ncu reads of one launch.
counters() {
  local name=$1 kernel=$2 scenario=$3 backend=$4 section words=()
  shift 4
  if ! command -v ncu >/dev/null; then
    report "$(printf '%-28s ncu not found' "$name")"
    return
  fi
  for section in SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis WarpStateStats \
    LaunchStats; do
    words+=(--section "$section")
  done
  stage "$name" 60 ncu --target-processes all --clock-control none --kernel-name "regex:$kernel" \
    --launch-skip 2 --launch-count 1 "${words[@]}" --print-details all \
    "$binary" run "$scenario" --device cuda --in-process --no-validation --no-progress --samples 3 \
    --sample-checks none --backend "$backend" "$@"
  grep -E "Duration|SM Frequency|Compute \(SM\) Throughput|L2 Hit Rate|Registers Per Thread|No Eligible|\
Tensor|HMMA|Local" "$work/$name.txt" | sed 's/  */ /g; s/^/  /' | sort -u | head -20 |
    tee -a "$out/stages.txt"
}

# sanitized NAME SECONDS TOOL COMMAND...: under a tool of compute-sanitizer.
sanitized() {
  local name=$1 limit=$2 tool=$3
  shift 3
  if ! command -v compute-sanitizer >/dev/null; then
    report "$(printf '%-28s compute-sanitizer not found' "$name-$tool")"
    return
  fi
  stage "$name-$tool" "$limit" compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
  grep -hE "ERROR SUMMARY|RACECHECK SUMMARY" "$work/$name-$tool.txt" | tail -1 | sed 's/^/  /' |
    tee -a "$out/stages.txt"
}
