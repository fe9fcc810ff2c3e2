//go:build cluster

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

const (
	hangTime = 20 * time.Second
	// hangGap is the longest time without an OK at a topic whose leader's disk works: replica-lag-max, a transaction of
	// the store, and room.
	hangGap = 3500 * time.Millisecond
	// hungLeaderGap is the same where the leader's own disk hangs: disk-patience, a hand-over, and room.
	hungLeaderGap = 12 * time.Second
	// blipTime is a stall that removes nobody; blipMax is how long one may have lasted in truth to say so.
	blipTime = 800 * time.Millisecond
	blipMax  = time.Second
	// hangChanges bounds the changes of one row while a disk hangs and after: a copy goes and comes back, a leadership
	// goes and comes back.
	hangChanges = 10
	// calmTimeout is how long a disk that answers may take to be good again: six times disk-patience, longer where the
	// device below stalls.
	calmTimeout = 5 * time.Minute
)

// hang is a cluster whose nodes have their messages on disks that can hang, and etcd on another one. Each node leads a
// topic of one partition, and producers publish to it through its leader.
type hang struct {
	*scenario
	volumes []*harness.Volume
	topics  []*workload.Run
	clients map[string]string // producer to topic
	lone    *lone
}

// F1, F6: the message disk of one of three nodes hangs for 20 s under load. What the others lead is acknowledged again
// soon, what it leads itself when it has given its leaderships away, and the copy that hung comes back by itself. A
// short stall moves nobody. Native callers that have one message on their way each fare alike.
func TestDiskHangs(t *testing.T) {
	h := beginHang(t)
	rounds := 2
	if text := os.Getenv("TEST_HANG_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		h.blip(round % len(h.volumes))
		h.round(round % len(h.volumes))
	}
	h.lone.end()
	r := h.judge()
	if !r.OK() {
		t.Errorf("the engine broke a promise: %v", r.Counts)
	}
	h.compare(r)
}

func beginHang(t *testing.T) *hang {
	t.Helper()
	needNet(t)
	if err := harness.FreezeMissing(); err != nil {
		t.Skipf("this machine cannot let a disk hang: %v", err)
	}
	h := &hang{clients: map[string]string{}}
	o := harness.Options{Volumes: map[int]string{}, Serve: slices.Concat(small, []string{"--default-partitions", "1"})}
	for i := range 3 {
		h.volumes = append(h.volumes, volume(t))
		o.Volumes[i] = h.volumes[i].Path
	}
	h.scenario = prepare(t, spread, o)
	t.Cleanup(func() { // before anything is killed or unmounted
		for _, v := range h.volumes {
			_ = v.Thaw() // most often it is not frozen
		}
	})
	h.leadEach()
	for i, run := range h.topics {
		h.publish(i, run)
	}
	h.lone = h.startLone()
	h.acks(200)
	return h
}

// leadEach makes topics until every node leads one.
func (h *hang) leadEach() {
	h.t.Helper()
	led := map[string]bool{}
	for n := 0; len(led) < len(h.c.Nodes); n++ {
		if n == 30 {
			h.t.Fatalf("of %d topics only %d nodes lead any", n, len(led))
		}
		run := h.run
		if n > 0 {
			run = &workload.Run{
				Topic: topic + strconv.Itoa(n), Recorder: h.run.Recorder, Nodes: h.run.Nodes, Lookups: h.run.Lookups,
				Names: h.run.Names,
			}
			h.try(h.c.CreateTopic(h.within(startTimeout), run.Topic))
			h.try(run.CreateChannel("a", true, func() error {
				return h.c.CreateChannel(h.within(startTimeout), run.Topic, "a")
			}))
		}
		leader := h.leaderOf(run.Topic)
		if !led[leader.Name] || n == 0 {
			led[leader.Name] = true
			h.topics = append(h.topics, run)
		}
	}
	h.healthy()
	h.t.Cleanup(h.stopAll)
}

func (h *hang) stopAll() {
	for _, run := range h.topics {
		run.StopProducers()
		run.StopConsumers()
	}
}

func (h *hang) leaderOf(topic string) *harness.Node {
	h.t.Helper()
	n, err := h.c.Leader(h.within(startTimeout), topic, 0)
	h.try(err)
	return n
}

// publish starts the clients of a topic. One producer stays with its leader whatever happens, one goes elsewhere when
// it is not answered.
func (h *hang) publish(i int, run *workload.Run) {
	h.t.Helper()
	run.Consume(workload.Consumer{Name: fmt.Sprintf("c%d", i), Channel: "a"})
	if run == h.run {
		run.Consume(workload.Consumer{Name: "c-b", Channel: "b"})
	}
	leader := h.leaderOf(run.Topic)
	stays, goes := fmt.Sprintf("stays%d", i), fmt.Sprintf("goes%d", i)
	h.clients[stays], h.clients[goes] = run.Topic, run.Topic
	run.Produce(workload.Producer{
		Name: stays, Addresses: []string{leader.NSQ}, Window: 16, PerSecond: 100, AnswerTimeout: hangTime,
	})
	run.Produce(workload.Producer{
		Name: goes, Addresses: rotated(run.Nodes, slices.Index(run.Nodes, leader.NSQ)), Window: 4, PerSecond: 50,
		AnswerTimeout: answerTimeout,
	})
}

// versions are the numbers of changes of the topics' rows.
func (h *hang) versions() map[string]uint64 {
	h.t.Helper()
	all := map[string]uint64{}
	for _, run := range h.topics {
		p, err := h.c.Partition(h.within(startTimeout), run.Topic, 0)
		h.try(err)
		all[run.Topic] = p.Version
	}
	return all
}

// isrChanges is how many changes of in-sync replicas the nodes have asked for. Leaderships that move are none.
func (h *hang) isrChanges() (all uint64) {
	h.t.Helper()
	for _, n := range h.c.Nodes {
		var stats struct {
			Storage struct {
				Changes uint64 `json:"isr_changes"`
			} `json:"storage"`
		}
		h.try(harness.Get(h.within(startTimeout), n.HTTP, "/stats?format=json", &stats))
		all += stats.Storage.Changes
	}
	return all
}

// blip lets a disk hang for a moment. Where the machine itself stood still it proves nothing.
func (h *hang) blip(i int) {
	h.t.Helper()
	before := h.isrChanges()
	v, begin, from := h.volumes[i], time.Now(), h.run.Recorder.Now()
	h.try(v.Freeze())
	h.pass(blipTime)
	h.try(v.Thaw())
	took := time.Since(begin)
	h.acks(200)
	longest := time.Duration(0)
	for _, gap := range h.gaps(from, h.run.Recorder.Now()) {
		longest = max(longest, gap)
	}
	if n := h.isrChanges() - before; n != 0 && took < blipMax && longest < blipMax {
		h.t.Errorf("the disk of %s hung for %v, the longest time without an OK was %v: the in-sync replicas changed %d times",
			h.c.Nodes[i].Name, took, longest, n)
	}
}

// watch lets time pass and returns what the machine itself cost at worst: by how much this process woke too late, or
// how long a flush of the device took that holds all nodes' disks.
func (h *hang) watch(d time.Duration) (late time.Duration) {
	const step = 20 * time.Millisecond
	flushed := h.deviceStalls()
	for end := time.Now().Add(d); time.Now().Before(end); {
		before := time.Now()
		h.pass(step)
		late = max(late, time.Since(before)-step)
	}
	return max(late, flushed())
}

// deviceStalls writes and flushes a block of the device below the nodes' disks again and again until the result is
// called, which returns how long that took at worst.
func (h *hang) deviceStalls() (worst func() time.Duration) {
	const pause = 50 * time.Millisecond
	f, err := os.Create(filepath.Join(h.t.TempDir(), "flush"))
	h.try(err)
	stop, stalled := make(chan struct{}), make(chan time.Duration)
	go func() {
		defer f.Close()
		longest := time.Duration(0)
		for {
			before := time.Now()
			_, err := f.WriteAt(make([]byte, 4096), 0)
			if err = errors.Join(err, f.Sync()); err == nil {
				longest = max(longest, time.Since(before))
			}
			select {
			case <-stop:
				stalled <- longest
				return
			case <-time.After(pause):
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-stalled
	}
}

// calm waits until every node calls its disk good: a disk that hung is given no leadership before that.
func (h *hang) calm() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), calmTimeout)
	defer cancel()
	for _, n := range h.c.Nodes {
		for {
			var stats struct {
				Storage struct {
					Disk string `json:"disk_state"`
				} `json:"storage"`
			}
			h.try(harness.Get(ctx, n.HTTP, "/stats?format=json", &stats))
			if stats.Storage.Disk == "good" {
				break
			}
			h.pass(100 * time.Millisecond)
		}
	}
}

// round lets the disk of a node hang, and looks at what the others lead.
func (h *hang) round(i int) {
	h.t.Helper()
	h.calm()
	n := h.c.Nodes[i]
	leaders := map[string]string{}
	for _, run := range h.topics {
		leaders[run.Topic] = h.leaderOf(run.Topic).Name
	}
	before, lonely := h.versions(), h.lone.leaders()
	h.lone.takeGaps()
	from := h.run.Recorder.Now()
	heal := h.fault("disk hangs", n.Name, h.volumes[i].Freeze)
	late := h.watch(hangTime)
	heal(h.volumes[i].Thaw)
	late = max(late, h.watch(hangGap))
	until := h.run.Recorder.Now()
	h.judgeLone(n.Name, lonely, late)
	h.healthy()
	h.acks(200)
	gaps := h.gaps(from, until)
	after := h.versions()
	for _, run := range h.topics {
		name := run.Topic
		h.t.Logf("the disk of %s hung: topic %s, led by %s: longest gap %v, %d changes",
			n.Name, name, leaders[name], gaps[name], after[name]-before[name])
		limit := hangGap
		if leaders[name] == n.Name {
			limit = hungLeaderGap
		}
		if limit += 2 * late; gaps[name] > limit {
			h.t.Errorf("the disk of %s hung, and topic %s, led by %s, had no OK for %v; allowed are %v",
				n.Name, name, leaders[name], gaps[name], limit)
		}
		if changes := after[name] - before[name]; changes > hangChanges {
			h.t.Errorf("the disk of %s hung, and the row of topic %s changed %d times; allowed are %d",
				n.Name, name, changes, hangChanges)
		}
	}
}

// judgeLone bounds how long callers of ProduceSync have waited while the disk of a node hung.
func (h *hang) judgeLone(node string, leaders [nativePartitions]string, late time.Duration) {
	h.t.Helper()
	for p, gap := range h.lone.takeGaps() {
		h.t.Logf("the disk of %s hung: native partition %d, led by %s: longest call %v", node, p, leaders[p], gap)
		limit := hangGap
		if leaders[p] == node {
			limit = hungLeaderGap
		}
		if limit += 2 * late; gap > limit {
			h.t.Errorf("the disk of %s hung, and a call for native partition %d, led by %s, took %v; allowed are %v",
				node, p, leaders[p], gap, limit)
		}
	}
}

// gaps are the longest times without an OK, for each topic.
func (h *hang) gaps(from, until time.Duration) map[string]time.Duration {
	last, longest := map[string]time.Duration{}, map[string]time.Duration{}
	for _, run := range h.topics {
		last[run.Topic] = from
	}
	note := func(name string, at time.Duration) {
		longest[name] = max(longest[name], at-last[name])
		last[name] = at
	}
	for _, e := range h.run.Recorder.Events() {
		if name := h.clients[e.Client]; e.Op == history.OK && name != "" && e.At >= from && e.At <= until {
			note(name, e.At)
		}
	}
	for _, run := range h.topics {
		note(run.Topic, until)
	}
	return longest
}

// acks waits until every topic got n more acknowledgements.
func (h *hang) acks(n int) {
	h.t.Helper()
	want := map[string]int{}
	for _, run := range h.topics {
		want[run.Topic] = run.Acked() + n
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), startTimeout)
	defer cancel()
	for _, run := range h.topics {
		for run.Acked() < want[run.Topic] {
			if ctx.Err() != nil {
				h.t.Fatalf("topic %s: %d more acknowledgements did not come within %v", run.Topic, n, startTimeout)
			}
			h.pass(5 * time.Millisecond)
		}
	}
}

// judge waits for what all topics owe, before the checker looks at the whole history.
func (h *hang) judge() *history.Report {
	h.t.Helper()
	for _, run := range h.topics {
		run.StopProducers()
	}
	for _, run := range h.topics {
		if err := run.Drain(h.within(h.drain)); err != nil {
			h.t.Logf("topic %s: %v", run.Topic, err)
		}
	}
	h.pass(settle)
	for _, run := range h.topics {
		run.StopConsumers()
	}
	return h.scenario.judge()
}
