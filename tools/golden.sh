#!/usr/bin/env bash
# Writes the golden data directories of engine/testdata/golden: those of level 1 by the last version before feature levels, those of level 2 by this tree. They are kept as
# they were written: run it only for a level that has none yet, or when the filling (engine/golden_make_test.go) has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/engine/testdata/golden
mkdir -p "$out"
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive 0462a0b | tar -x -C "$old"
cp engine/golden_world_test.go engine/golden_make_test.go "$old/engine/"
make() { (cd "$1" && go test -tags golden ./engine -run TestMakeGolden -count=1 -golden-out "$out" -golden-name "$2"); }
make "$old" level1
make . level2
ls -l "$out"
