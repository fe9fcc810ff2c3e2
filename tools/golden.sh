#!/usr/bin/env bash
# Writes the golden data directories of internal/node/testdata/golden: those of level 1 by the last version before feature
# levels, those of the levels 2 to 5 by the last version of each, those of level 6 by this tree. They are kept as they
# were written: run it only for a level that has none yet (LEVELS=6), or when the filling (internal/node/golden_make_test.go)
# has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/internal/node/testdata/golden
mkdir -p "$out"
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
make() { (cd "$1" && go test -tags golden "./$([ -d internal/node ] && echo internal/node || echo engine)" -run TestMakeGolden -count=1 -golden-out "$out" -golden-name "$2"); }
for level in ${LEVELS:-1 2 3 4 5 6}; do
	case $level in
	1) commit=0462a0b ;;
	2) commit=b52ed96 ;;
	3) commit=9e2d1e99 ;;
	4) commit=c5a88176 ;;
	5) commit=4731c60e ;;
	6)
		make . level6
		continue
		;;
	esac
	mkdir "$old/$level"
	git archive "$commit" | tar -x -C "$old/$level"
	cp internal/node/golden_world_test.go internal/node/golden_make_test.go \
		"$old/$level/$([ -d "$old/$level/internal/node" ] && echo internal/node || echo engine)/"
	make "$old/$level" "level$level"
done
ls -l "$out"
