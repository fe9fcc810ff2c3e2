#!/usr/bin/env bash
# Publishes the messages 1 to 10000 (or MESSAGES), one after the other, through a node of `make cluster`, kills the node
# that leads the topic with kill -9 in the middle, and looks for each message that was answered OK in what the topic holds
# afterwards. It needs curl, bin/penstock and the three nodes of `make cluster`, which starts a node again that ends: so
# it can be run any number of times.
set -euo pipefail
base=${BASE_PORT:-14150}
count=${MESSAGES:-10000}
topic=demo$$
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
penstock=$(command -v penstock || echo "$(dirname "$0")/../bin/penstock")
http() { echo "127.0.0.1:$((base + 10 * (${1#n} - 1) + 1))"; }
ask() { curl -fs -m 10 "$@"; } # a node that does not answer ends the script: it never hangs
leader() { ask "http://$(http "$1")/cluster/topics?topic=$topic" | grep -o '"leader": *"[^"]*"' | head -1 | cut -d'"' -f4; }
all_live() {
	for _ in $(seq 300); do
		live=$( (ask "http://$(http n1)/cluster/status" || ask "http://$(http n2)/cluster/status") 2>/dev/null |
			grep -o '"presence": *"live"' | wc -l || true)
		[ "$live" = 3 ] && return
		sleep 0.1
	done
	echo "only $live of 3 nodes are live: stop the cluster with ctrl-C, and start it again with make cluster" >&2
	exit 1
}

all_live
ask -X POST "http://$(http n1)/topic/create?topic=$topic" >/dev/null
victim=$(leader n1)
door=$([ "$victim" = n1 ] && echo n2 || echo n1)
pid=$(pgrep -f -- "serve .*--node-id $victim .*--nsq-address 127.0.0.1:$((base + 10 * (${victim#n} - 1))) ")
echo "$victim leads the topic; publishing through $door"

# One curl publishes all on one connection, each after the answer to the one before, and prints a line for each answer.
publish() {
	seq "$count" | sed "s|.*|next\nurl = http://$(http "$door")/pub?topic=$topic\ndata = &\nwrite-out = \"\\n\"|" |
		curl -sN --max-time 10 -K -
}
number=0 acknowledged=0 now=
while read -r answer; do
	number=$((number + 1))
	if [ "$answer" = OK ]; then
		acknowledged=$((acknowledged + 1))
		echo $number >>"$work/acknowledged"
	fi
	if [ $number = $((count / 5)) ]; then
		echo "kill -9 of $victim"
		kill -9 "$pid"
	elif [ $number -gt $((count / 5)) ] && [ -z "$now" ] && [ "$(leader "$door")" != "$victim" ]; then
		now=$(leader "$door")
		echo "$now leads now"
	fi
done < <(publish)
all_live
"$penstock" read "$topic" --nodes "127.0.0.1:$((base + 3)),127.0.0.1:$((base + 13)),127.0.0.1:$((base + 23))" >"$work/stored"
lost=$(comm -23 <(sort "$work/acknowledged") <(sort "$work/stored") | wc -l)
echo "$acknowledged acknowledged, $((number - acknowledged)) not; $lost of the acknowledged are missing"
ask -X POST "http://$(http "$door")/topic/delete?topic=$topic" >/dev/null
echo "$victim is back, and the topic is deleted"
[ "$lost" = 0 ]
