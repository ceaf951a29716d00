#!/usr/bin/env bash
# Runs the CUDA tests at small shapes under compute-sanitizer, and expects 0 errors. Before that, each tool must
# report the bug that tests/sanitizer/planted_bugs.cu contains for it. Several tests run at the same time; logs are
# written to LOGS. Needs a build with -DGRADTILE_COMPUTE_SANITIZER=ON, or =racecheck for the tool racecheck. usage:
# tests/sanitize_cuda.sh [BUILD_DIR] [LOGS] [JOBS] JOBS: a regular expression for names like racecheck.core_test, as
# in
#   tests/sanitize_cuda.sh build/sanitizer logs '^(memcheck|initcheck|synccheck)' && tests/sanitize_cuda.sh build/racecheck logs ^racecheck
set -uo pipefail
build=${1:-build/release}
logs=${2:-$build/sanitizer}
only=${3:-.}
seconds=${GRADTILE_SANITIZE_SECONDS:-300}  # time limit of a job
at_once=${GRADTILE_SANITIZE_JOBS:-$(nproc)}
tools="memcheck racecheck initcheck synccheck"
mkdir -p "$logs"
# Each tensor gets a separate allocation without poison, so that the tools detect accesses beyond its ends and reads
# before the first write.
export GRADTILE_TEST_PLAIN_MEMORY=1 GRADTILE_TEST_ROUNDS=2

find_program() { find "$build" -name "$1" -type f -perm -u+x | head -1; }

# job TOOL NAME PROGRAM ARGUMENTS..
job() {
  local tool=$1 name=$2 begin=$SECONDS
  shift 2
  timeout "$seconds" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 33 "$@" > "$logs/$tool.$name.log" 2>&1
  echo "$? $((SECONDS - begin))" > "$logs/$tool.$name.rc"
}

failed=0
planted=$(find_program planted_bugs)
if [ -z "$planted" ]; then echo "sanitize_cuda: no planted_bugs in $build; configure with -DGRADTILE_COMPUTE_SANITIZER=ON"; exit 2; fi
for tool in $tools; do
  job "$tool" planted "$planted" "$tool"
  if [ "$(cut -d' ' -f1 "$logs/$tool.planted.rc")" = 33 ]; then
    echo "$tool sees its planted bug: $(grep -hE 'SUMMARY' "$logs/$tool.planted.log" | tail -1 | sed 's/=* *//')"
  else
    echo "$tool MISSES its planted bug"; failed=1
  fi
done

# Selects tests with small shapes, without tests that provoke errors, repeat others or only plan memory. racecheck and
# initcheck slow kernels down a hundred times or more, and initcheck does not see what cuBLASLt writes by TMA. So
# these two tools run one problem for each instantiation of attention, and no matrix products. The suites of the
# layers are left out, because they have thousands of launches and other tests run the same kernels.
attention() {
  local of=AttentionCudaDtypes dtype=$1
  shift
  for name in "$@"; do printf '*%s.%s*/%s:' "$of" "$name" "$dtype"; done
}
filter() {
  local few='DeterministicGradients BiasesOfEveryDtype RowsWhoseScores DropoutDrops' tool=$1
  case $tool in memcheck | synccheck) local all=yes ;; *) local all= ;; esac
  case $2 in
    core_test) echo "Cuda.Copy*:Cuda.Draws*:Cuda.Axpy*:Cuda.FillWrites*:Cuda.ToDevice*${all:+:Cuda.Gemm*:GemmOnCuda.*}" ;;
    layers_test) echo "OnCuda.*${all:+:ProductsOnCuda.LinearGelu*}-*LayerSuite*:*CrossEntropy*:*ManyRows*" ;;
    model_test) echo 'OnCuda.*' ;;
    train_test) echo "CudaGlobalNorm.*:CudaAdamW.*:CudaLion.*:CudaStepInput.*${all:+:CudaMuon.*}" ;;
    attention_test.*) printf '*AttentionCudaRepeats.ShortDense*/%s:' "${2#*.}"; attention "${2#*.}" $few ManyTiny ${all:+IsAsAccurateAsNaiveAtAnyHeadDim IsAsAccurateAsNaiveUnderAnyOption IsAsAccurateAsNaiveUnderEveryScoreOption IsAsAccurateAsNaiveUnderAllScoreOptions ZeroLengths ExpandedTensors} ;;
  esac
}
names="core_test layers_test model_test train_test"
for dtype in float64 float32 bfloat16 float16; do names="$names attention_test.$dtype"; done
chosen=
for tool in $tools; do
  for name in $names; do
    [[ $tool.$name =~ $only ]] || continue
    chosen="$chosen $tool.$name"
    program=$(find_program "${name%%.*}")
    if [ -z "$program" ]; then echo "no ${name%%.*} in $build"; failed=1; continue; fi
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    job "$tool" "$name" "$program" --gtest_filter="$(filter "$tool" "$name")" --gtest_brief=1 &
  done
done
wait

printf '%-10s %-24s %6s %8s  %s\n' tool tests passed seconds found
for key in $chosen; do
  log=$logs/$key.log
  passed=$(grep -oE '\[  PASSED  \] [0-9]+' "$log" | grep -oE '[0-9]+$')
  found=$(grep -hE 'SUMMARY' "$log" | tail -1 | sed 's/=* *//')
  read -r rc took < "$logs/$key.rc"
  note=
  if [ "$rc" != 0 ] || [ "${passed:-0}" = 0 ]; then failed=1; note="  FAILED ($rc)"; fi
  printf '%-10s %-24s %6s %8s  %s%s\n' "${key%%.*}" "${key#*.}" "${passed:-0}" "$took" "${found:-no summary}" "$note"
done
exit $failed
