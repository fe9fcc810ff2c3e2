#!/usr/bin/env bash
# Publishes 10000 messages, one after the other, through a node of `make cluster`, kills the node that leads the topic
# with kill -9 in the middle, and compares what was answered OK with what the channel holds afterwards. It needs curl and
# the three nodes that `make cluster` started, which starts a node again that ends: so it can be run any number of times.
set -euo pipefail
base=${BASE_PORT:-14150}
topic=demo$$
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
ask -X POST "http://$(http n1)/channel/create?topic=$topic&channel=all" >/dev/null
victim=$(leader n1)
door=$([ "$victim" = n1 ] && echo n2 || echo n1)
echo "$victim leads the topic; publishing through $door"

acknowledged=0 refused=0
while read -r answer; do # one line for each publish; curl goes on while this reads
	if [ "$answer" = OK ]; then
		acknowledged=$((acknowledged + 1))
	else
		refused=$((refused + 1)) # an error, or unknown: a publisher would repeat it
	fi
	if [ $((acknowledged + refused)) = 2000 ]; then
		echo "kill -9 of $victim"
		pkill -9 -f -- "serve .*--node-id $victim .*--nsq-address 127.0.0.1:$((base + 10 * (${victim#n} - 1))) "
	fi
done < <(curl -sN -m 120 -w '\n' -d message "http://$(http $door)/pub?topic=$topic&n=[1-10000]")
now=$(leader $door)
stored=$(ask "http://$(http "$now")/stats?format=json&topic=$topic" | grep -o '"channel_name":"all","depth":[0-9]*' | grep -o '[0-9]*$')
echo "$now leads now; $acknowledged acknowledged, $refused not, $stored in the channel"
[ "$stored" -ge "$acknowledged" ]
all_live
ask -X POST "http://$(http $door)/topic/delete?topic=$topic" >/dev/null
echo "$victim is back, and the topic is deleted"
