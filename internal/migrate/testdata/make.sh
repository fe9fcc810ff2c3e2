#!/usr/bin/env bash
# usage: make.sh NSQD
# Makes the directories of the tests with a real nsqd (v1.3.0) and curl. They are kept as archives because the names of
# nsqd's files have colons, which a Go module may not.
#
#   clean   stopped by SIGTERM. Small files, so that queues have several.
#     orders   channel audit: order-0..order-39 without 5..9 and 30; channel billing: order-20..order-39; channel idle: nothing
#     alone    no channel: alone-0..alone-9
#     held     paused, channel late: nothing; held-0..held-4 wait at the topic
#     quiet    channel stopped, which is paused: quiet-0..quiet-2
#   killed  kill -9 with --mem-queue-size=0 and a sync that never came: no meta file, or an old one.
#     crash    channel c: crash-0..crash-29; the topic's old meta file offers the last four once more
set -euo pipefail
NSQD=${1:?}
HERE=$(cd "$(dirname "$0")" && pwd)
T=24150 H=24151
start() {
	"$NSQD" --data-path="$D" --tcp-address=127.0.0.1:$T --http-address=127.0.0.1:$H --max-bytes-per-file=512 "$@" 2>>"$D.log" &
	P=$!
	for _ in $(seq 100); do curl -fs http://127.0.0.1:$H/ping >/dev/null && return; sleep 0.05; done
	exit 1
}
post() { curl -fs -X POST "http://127.0.0.1:$H$1" -d "${2:-}" >/dev/null; }
pub() { for i in $(seq "$2" "$3"); do post "/pub?topic=$1" "$4-$i"; done; }
settle() { # until the topic gave everything to its channels
	until curl -fs "http://127.0.0.1:$H/stats?format=json&topic=$1" | grep -q "\"topic_name\":\"$1\",.*\"depth\":0,\"backend_depth\":0,\"message_count\":[0-9]*,\"message_bytes\":[0-9]*,\"paused\":false,\"e2e"; do sleep 0.05; done
	sleep 0.2
}
D=$(mktemp -d)/clean && mkdir "$D"
start
post "/topic/create?topic=orders"
post "/channel/create?topic=orders&channel=audit"
pub orders 0 19 order
settle orders
post "/channel/create?topic=orders&channel=billing"
pub orders 20 39 order
settle orders
post "/channel/create?topic=orders&channel=idle"
settle orders
post "/channel/empty?topic=orders&channel=idle"
pub alone 0 9 alone
post "/topic/create?topic=held"
post "/channel/create?topic=held&channel=late"
post "/topic/pause?topic=held"
pub held 0 4 held
post "/topic/create?topic=quiet"
post "/channel/create?topic=quiet&channel=stopped"
post "/channel/pause?topic=quiet&channel=stopped"
pub quiet 0 2 quiet
settle quiet
python3 - "$T" <<'PY'
# Channel audit finishes some: now each of two channels has what the other has not.
import socket, struct, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"  V2SUB orders audit\nRDY 40\n")
f, n = s.makefile("rb"), 0
while n < 40:
    size, kind = struct.unpack(">II", f.read(8))
    data = f.read(size - 4)
    if kind != 2:
        continue
    n += 1
    if data[26:] in [b"order-%d" % i for i in (5, 6, 7, 8, 9, 30)]:
        s.sendall(b"FIN " + data[10:26] + b"\n")
s.sendall(b"CLS\n")
import time; time.sleep(0.3)
PY
kill -TERM $P && wait $P
tar -C "$D" --sort=name --mtime=2024-01-01 --owner=0 --group=0 -czf "$HERE/clean.tar.gz" .
D=$(dirname "$D")/killed && mkdir "$D"
start --mem-queue-size=0 --sync-every=1000000 --sync-timeout=1h
post "/topic/create?topic=crash"
post "/channel/create?topic=crash&channel=c"
pub crash 0 29 crash
settle crash
kill -KILL $P && wait $P || true
tar -C "$D" --sort=name --mtime=2024-01-01 --owner=0 --group=0 -czf "$HERE/killed.tar.gz" .
