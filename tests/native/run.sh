#!/usr/bin/env bash
# Builds the native stress programs with the sanitizers and runs them. Usage: run.sh [programs]
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=${1:-150}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
core=$(printf "kscheduler/csrc/%s.cpp " latch pool streams replay)
flags="-std=c++17 -O1 -g -Wall -Wextra -pthread -Ikscheduler/csrc"

build() { ${CXX:-g++} $flags "-fsanitize=$1" $2 -o "$3"; }

build thread "tests/native/stress_streams.cpp $core" "$out/streams_tsan"
build address,undefined "tests/native/stress_streams.cpp $core" "$out/streams_asan"
build address,undefined tests/native/stress_tracker.cpp "$out/tracker_asan"

echo "ThreadSanitizer, streams and replay:"
TSAN_OPTIONS="halt_on_error=1" "$out/streams_tsan" "$programs"
echo "AddressSanitizer, streams and replay:"
"$out/streams_asan" "$programs"
echo "AddressSanitizer, tracker:"
"$out/tracker_asan" "$programs"
