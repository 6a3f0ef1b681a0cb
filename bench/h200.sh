#!/usr/bin/env bash
# Stages of the runs on a GPU machine without a network; raw results go to $OUT. A short summary comes last.
#   h200.sh build                 compile for this GPU and put the extension into the package in the source tree
#   h200.sh tests                 conformance, order, faults on the GPU
#   h200.sh order FILTER          some of the order tests with one hardware queue and busy streams
#   h200.sh sanitize [TOOL...]    compute-sanitizer over a part of these tests: memcheck racecheck initcheck
#   h200.sh micro [NAME...]       pool (first: it wants a cold machine), submit, gil, transfer, interference
#   h200.sh disk [ARGUMENT...]    the disk tier beside fio (on PATH), and from disk to the GPU: see bench/disk.py
#   h200.sh vllm-install DIR      install one part of a packed vLLM (DIR/install.sh)
#   h200.sh vllm-order [RUNNER]   order and bytes inside a real vLLM; KVO_ORDER_MODES=plain,nofence picks modes
#   h200.sh vllm-verify [RUNNER]  every block's bytes at store and load, in a real vLLM under load; KVO_VERIFY_MODES=graphs,eager
#   h200.sh vllm-sched            what our scheduler half adds to a step; wants a machine to itself, no GPU
#   h200.sh e2e SYSTEM-RUNNER...  time to first token and throughput: {none|native|lmcache|kvoffload}-{v1|v2}
# KVO_COMMIT names the commit that is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
export OUT="${OUT:-$PWD/build/out}" PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"
stage="${1:?usage: h200.sh STAGE, see the head of this file}"
shift

build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVO_CUDA=ON -DKVO_CUDA_ARCHS="${KVO_CUDA_ARCHS:-90}" \
    -DPython_EXECUTABLE="$(command -v python3)" >"$OUT/build.log" 2>&1 || { tail -20 "$OUT/build.log"; exit 1; }
  cmake --build build/gpu --target install_module >>"$OUT/build.log" 2>&1 || { grep -A5 -m8 error "$OUT/build.log"; exit 1; }
  python3 -c 'import kvoffload as kv; print("built, with CUDA:", kv._C.with_cuda, kv._C.__file__)'
}

# Long output goes to a file; failures and the closing line are shown.
run_pytest() {
  local log="$OUT/$1.log"
  shift
  python3 -m pytest -p no:cacheprovider -ra --timeout 280 --durations 8 "$@" >"$log" 2>&1 || status=$?
  grep -E '^(FAILED|ERROR|E  )' "$log" | cut -c1-300 | head -40 || true
  tail -12 "$log" | cut -c1-300
  return "${status:-0}"
}

# One tool after the other over tests that launch every kernel on every path.
sanitize() {
  local tests='cuda-torch and (layout_comes_back or middle_of_a_chunk or empty or queue_is_bounded or nth_copy or hundred or waits_for_work)'
  local tool status=0
  for tool in "$@"; do
    # initcheck does not see what batch copies write.
    KVO_TEST_FAULTS=$([ "$tool" != initcheck ] || echo batch_copy) \
      compute-sanitizer --tool "$tool" $([ "$tool" != memcheck ] || echo --leak-check no) --log-file "$OUT/$tool.log" \
      python3 -m pytest -p no:cacheprovider -q --timeout 500 -k "$tests" \
      tests/python/test_conformance.py tests/python/test_order.py tests/python/test_refusals.py tests/python/test_faults.py \
      >"$OUT/$tool-tests.log" 2>&1 || status=$?
    tail -1 "$OUT/$tool-tests.log"
    grep -E '=========' "$OUT/$tool.log" | cut -c1-200 | head -20 || true
    python3 bench/sanitizer.py "$tool" "$OUT/$tool.log"
  done
  return "$status"
}

case "$stage" in
  build) build ;;
  tests)  # on 8 processes; busy streams take their time slices from all of them, so they come later; alone: free memory
    run_pytest gpu-tests -n 8 -m gpu tests/python tests/gpu -k "not keeping_gpu_memory and not order_holds_with" || failed=1
    run_pytest gpu-order -n 2 -m gpu tests/gpu -k order_holds_with || failed=1
    run_pytest gpu-alone -m gpu tests/gpu -k keeping_gpu_memory || failed=1
    exit "${failed:-0}"
    ;;
  order) run_pytest gpu-order -n 2 -m gpu tests/gpu -k "order_holds_with and ($1)" ;;
  sanitize) sanitize ${*:-memcheck racecheck initcheck} ;;
  micro) for name in ${*:-pool submit gil transfer interference}; do echo "== $name"; python3 "bench/$name.py"; done ;;
  disk) python3 bench/disk.py "$@" ;;
  vllm-install) bash "$1/install.sh" && echo "installed $1" ;;
  vllm-sched) . "$HOME/vllm-site/env.sh" && python3 bench/sched.py "$@" ;;
  vllm-order | vllm-verify | e2e)
    . "$HOME/vllm-site/env.sh"
    if [ "$stage" = e2e ]; then
      export KVO_E2E_LOCK="${KVO_E2E_LOCK:-/tmp/e2e.lock}"  # one after the other, but for their imports
      for run in "$@"; do
        (python3 bench/e2e.py "${run%-*}" "${run#*-}" >"/tmp/e2e-$run.log" 2>&1 || { echo "$run failed"; tail -25 "/tmp/e2e-$run.log" | cut -c1-300; }) &
        sleep 1
      done
      wait
      for run in "$@"; do grep -E '^(e2e|PROBLEM)|kvoffload: host' "/tmp/e2e-$run.log" | cut -c1-250; done
    else
      python3 "tests/gpu/${stage/-/_}.py" "$@"
    fi
    ;;
  *) echo "h200.sh: no stage '$stage'; see the head of this file" >&2; exit 2 ;;
esac
