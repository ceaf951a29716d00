#!/usr/bin/env bash
# Compares a build with independent software from PyPI. usage: scripts/judge.sh [--torch] [--llama-cpp] [GRADTILE] (default: build/release/gradtile)
#   or: scripts/judge.sh --flash-attention DIR [--seconds N] [--seed N] [--workers N] [--device cpu]
# Installs the packages of tests/judge/requirements.txt in build/judge; exit code 77 when that is not possible.
# The pages of `gradtile lab --html` and `gradtile report` are judged in Chromium, if that is installed.
# With --torch also PyTorch and transformers, 5 GB, in build/judge-torch: they train the models of tests/reference/training_losses.json
# again, and check imported and exported weights, quantized weights with bitsandbytes, the meaning of every member of config files, the figures of
# `gradtile eval`, and chat templates. With
# --llama-cpp also llama.cpp, which pip compiles in build/judge-llama-cpp: it must read exported GGUF files
# and compute the same.
# With --flash-attention only FlashAttention's own tests run, from DIR, a checkout of Dao-AILab/flash-attention, on a GPU. They need a python3 with
# torch and einops, or PyPI. tests/judge/flash_attention/run.py explains them; GRADTILE_HOPPER_ATTENTION=off judges the kernels for all GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
with_torch=false
with_llama_cpp=false
only_flash_attention=false
while :; do
  case "${1:-}" in
    --torch) with_torch=true; shift ;;
    --llama-cpp) with_llama_cpp=true; shift ;;
    --flash-attention) only_flash_attention=true; shift; break ;;
    *) break ;;
  esac
done

# usage: install VENV REQUIREMENTS
install() {
  cmp --silent "$2" "$1/installed.txt" && return
  rm -rf "$1"
  if ! { python3 -m venv "$1" && "$1/bin/python" -m pip install --quiet --no-compile --timeout 30 --retries 2 -r "$2"; } >"$1.log" 2>&1; then
    echo "judge.sh: cannot install $2 (needs python3 with venv, and PyPI): $(tail -1 "$1.log")" >&2
    exit 77
  fi
  cp "$2" "$1/installed.txt"
}
# usage: judge VENV PROGRAM
judge() {
  echo "== $2"
  mkdir "$work/$(basename "$2" .py)"
  "$1/bin/python" "$2" "$gradtile" "$work/$(basename "$2" .py)"
}

# usage: judge_flash_attention DIR [OPTION]...
judge_flash_attention() {
  local python=python3 build=build/judge-flash-attention cuda=ON
  [ -f "${1:-}/hopper/test_flash_attn.py" ] || { echo "judge.sh: '${1:-}' is no checkout of Dao-AILab/flash-attention" >&2; exit 1; }
  case " $* " in *" --device cpu "* | *" --device=cpu "*) cuda=OFF ;; esac
  if ! python3 -c 'import torch, einops' 2>/dev/null; then
    install build/judge-torch tests/judge/torch_requirements.txt
    python=build/judge-torch/bin/python
  fi
  mkdir -p "$build"
  cmake -S tests/judge/flash_attention -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADTILE_CUDA=$cuda >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log"; exit 1; }
  cmake --build "$build" --target flash_attention_shim >"$build/build.log" 2>&1 || { tail -30 "$build/build.log"; exit 1; }
  "$python" tests/judge/flash_attention/run.py "$build/libflash_attention_shim.so" "$@"
}

mkdir -p build
if $only_flash_attention; then
  judge_flash_attention "$@"
  exit
fi
gradtile=${1:-build/release/gradtile}
[ -x "$gradtile" ] || { echo "judge.sh: $gradtile: no such program; scripts/build.sh builds build/release/gradtile" >&2; exit 1; }
install build/judge tests/judge/requirements.txt
if $with_torch; then install build/judge-torch tests/judge/torch_requirements.txt; fi
if $with_llama_cpp; then install build/judge-llama-cpp tests/judge/llama_cpp_requirements.txt; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in tests/judge/*_judge.py; do
  case $program in
    */chat_judge.py | */eval_judge.py | */members_judge.py | */quantized_judge.py | */training_judge.py | */weights_judge.py) if $with_torch; then judge build/judge-torch "$program"; else echo "== $program: only with --torch"; fi ;;
    */llama_cpp_judge.py) if $with_llama_cpp; then judge build/judge-llama-cpp "$program"; else echo "== $program: only with --llama-cpp"; fi ;;
    */lab_page_judge.py | */report_page_judge.py) if command -v chromium google-chrome >/dev/null; then judge build/judge "$program"; else echo "== $program: only with chromium"; fi ;;
    *) judge build/judge "$program" ;;
  esac
done
