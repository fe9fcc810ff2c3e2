package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"penstock/client"
	"penstock/tests/cluster/harness"
)

const (
	numbersTopic = "numbers" // what a program with package client writes
	linesTopic   = "lines"   // what `penstock pub` writes
	// nativePartitions is what dev-cluster gives a topic: see usual.
	nativePartitions = 3
	numbersPerSecond = 600
	linesPerSecond   = 300
	// nativePatience bounds the wait for a message in spite of everything that the test does.
	nativePatience = 2 * time.Minute
)

var quietLog = slog.New(slog.DiscardHandler)

// natives are three nodes, and native clients that nothing may disturb.
type natives struct {
	*scenario
	c       *client.Client
	numbers *numbers
	lines   *lines
}

// A named producer writes numbered messages to all partitions, and `penstock pub --producer --lines` writes lines,
// while their leaders are killed one after the other, and pub itself. Each partition has each message once, in order,
// and the one who wrote it was told the id that it has. Consumers of two channels get each message at least once, and
// none again after a Sync that confirmed it. `make native-failover` does it a hundred times.
//
// B17, B19, B44, B81.
func TestNativeFailover(t *testing.T) {
	s := prepare(t, three, harness.Options{})
	ctx := s.within(startTimeout)
	for _, topic := range []string{numbersTopic, linesTopic} {
		s.try(s.c.CreateTopic(ctx, topic))
	}
	s.healthy()
	s.configure(numbersTopic, map[string]any{"keep_age_ms": -1}) // what consumers have finished is read again in the end
	n := &natives{scenario: s, c: s.dialNative()}
	eaters := []*eater{n.eat("one-by-one", false), n.eat("through", true)}
	n.numbers = n.startNumbers()
	n.lines = n.startLines()
	began, kills := time.Now(), rounds(t, 2)
	var slowest time.Duration
	for round := range kills {
		slowest = max(slowest, n.killLeader(round))
	}
	stored, written := n.numbers.end(), n.lines.end()
	for _, e := range eaters {
		e.end(stored)
	}
	for p, want := range stored {
		n.checkPartition(numbersTopic, p, want)
	}
	n.checkPartition(linesTopic, 0, written)
	t.Logf("%d leaders and %d runs of penstock pub killed in %v: %v numbers, %d lines, each stored once, in order; the "+
		"longest time until all partitions had stored more after a kill was %v",
		kills, n.lines.kills, time.Since(began).Round(time.Second), stored, written, slowest.Round(time.Millisecond))
}

func (s *scenario) dialNative() *client.Client {
	s.t.Helper()
	c, err := client.Dial(s.within(startTimeout), s.natives(), client.Options{Logger: quietLog})
	s.try(err)
	s.t.Cleanup(c.Close)
	return c
}

// configure makes the first settings of a topic.
func (s *scenario) configure(topic string, settings map[string]any) {
	s.t.Helper()
	settings["version"] = 0
	s.try(harness.Post(s.within(startTimeout), s.c.Nodes[0].HTTP, "/topic/settings?topic="+topic, settings, nil))
}

func (s *scenario) natives() (addresses []string) {
	for _, n := range s.c.Nodes {
		addresses = append(addresses, n.Native)
	}
	return addresses
}

// killLeader kills the leader of a partition, and pub while there is no new leader, or soon after; waits until every
// partition has more; and starts the node again. It returns how long that took from the kill on.
func (n *natives) killLeader(round int) time.Duration {
	n.t.Helper()
	topic, partition := numbersTopic, uint32(round%nativePartitions)
	if round%2 == 1 { // the one that pub writes to
		topic, partition = linesTopic, 0
	}
	leader, err := n.scenario.c.Leader(n.within(startTimeout), topic, partition)
	n.try(err)
	n.try(leader.Kill())
	killed := time.Now()
	if round%3 == 0 {
		n.lines.restart()
	}
	n.numbers.more(50)
	n.lines.more(50)
	took := time.Since(killed)
	if round%3 == 1 {
		n.lines.restart()
	}
	n.try(leader.Restart(n.within(startTimeout)))
	n.healthy()
	if round%3 == 2 {
		n.lines.restart()
	}
	return took
}

// await waits until a count has grown by n.
func (n *natives) await(what string, more int64, count func() int64) {
	n.t.Helper()
	want := count() + more
	for end := time.Now().Add(nativePatience); count() < want; n.pass(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: %d more did not come within %v", what, more, nativePatience)
		}
	}
}

// numbers is a named producer with package client. Message k of a partition has the body k.
type numbers struct {
	n        *natives
	producer *client.Producer
	stop     context.CancelFunc
	ended    chan struct{}
	produced [nativePartitions]int64 // of the goroutine that produces
	stored   [nativePartitions]atomic.Int64
}

func (n *natives) startNumbers() *numbers {
	n.t.Helper()
	w := &numbers{n: n, ended: make(chan struct{})}
	p, err := n.c.Producer(n.within(startTimeout), numbersTopic, client.ProducerOptions{
		Name: "numbers", StopAtFailure: true, DeliveryTimeout: nativePatience, MaxBatchBytes: 1 << 10,
		Partition: func(m *client.Message, count int) int { return int(m.Body[0]-'0') % count },
	})
	n.try(err)
	w.producer = p
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	n.t.Cleanup(func() { stop(); <-w.ended })
	go w.produce(ctx)
	return w
}

// numbersPause is how long the producer waits after one message for each partition.
const numbersPause = time.Second * nativePartitions / numbersPerSecond

// produce produces to one partition after the other.
func (w *numbers) produce(ctx context.Context) {
	defer close(w.ended)
	tick := time.NewTicker(numbersPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for p := range w.produced {
			m := &client.Message{Body: numberOf(p, w.produced[p])}
			w.produced[p]++
			w.producer.Produce(context.Background(), m, w.done)
		}
	}
}

// numberOf is the body of message k of a partition.
func numberOf(partition int, k int64) []byte { return fmt.Appendf(nil, "%d:%d", partition, k) }

// done hears that a message is stored: each once, in order, under the id that its number gives.
func (w *numbers) done(m *client.Message, id client.ID, err error) {
	p := int(m.Body[0] - '0')
	k := w.stored[p].Load()
	if err != nil || int(id.Partition()) != p || int64(id.MsgID()) != k || !bytes.Equal(m.Body, numberOf(p, k)) {
		w.n.t.Errorf("message %s of partition %d, with %d stored before it: %v, %v", m.Body, p, k, id, err)
	}
	w.stored[p].Add(1)
}

// more waits until every partition has stored n more.
func (w *numbers) more(n int64) {
	w.n.t.Helper()
	for p := range w.stored {
		w.n.await("messages of partition "+strconv.Itoa(p), n, w.stored[p].Load)
	}
}

// end ends the producer once everything is stored, and returns how many messages each partition has.
func (w *numbers) end() (count [nativePartitions]int64) {
	w.n.t.Helper()
	w.stop()
	<-w.ended
	w.n.try(w.producer.Close(w.n.within(nativePatience)))
	for p := range count {
		if count[p] = w.stored[p].Load(); count[p] != w.produced[p] {
			w.n.t.Errorf("%d messages of partition %d were produced, %d are stored", w.produced[p], p, count[p])
		}
	}
	return count
}

// lines is `penstock pub --producer --lines`, which is killed and started again with the same input. Line k is the
// number k. seen is how many of them a reader has seen, each once and in order.
type lines struct {
	n     *natives
	kills int
	seen  atomic.Int64
	cmd   *exec.Cmd
	last  atomic.Int64 // line after which the input ends, once that is decided
	out   bytes.Buffer // of the process that runs
}

const unending = 1 << 62

func (n *natives) startLines() *lines {
	n.t.Helper()
	l := &lines{n: n}
	l.last.Store(unending)
	r, err := n.c.Reader(n.within(startTimeout), linesTopic, 0, client.FromOldest())
	n.try(err)
	n.t.Cleanup(r.Close)
	go l.follow(r)
	l.start(linesPerSecond)
	n.t.Cleanup(func() {
		if l.cmd != nil {
			_ = l.cmd.Process.Kill()
			_ = l.cmd.Wait()
		}
	})
	l.more(50)
	return l
}

// follow reads the lines while they are written.
func (l *lines) follow(r *client.Reader) {
	for {
		m, err := r.Next(context.Background())
		k := l.seen.Load()
		switch {
		case errors.Is(err, client.ErrClosed):
			return
		case err != nil || int64(m.ID.MsgID()) != k || string(m.Body) != strconv.FormatInt(k, 10):
			l.n.t.Errorf("line %d is read as %v %q: %v", k, m.ID, m.Body, err)
			return
		}
		l.seen.Add(1)
	}
}

// start starts pub with the lines from the first one on; perSecond 0: as fast as it can.
func (l *lines) start(perSecond int) {
	l.n.t.Helper()
	binary, err := harness.Binary()
	l.n.try(err)
	args := []string{
		"pub", linesTopic, "--producer", "import", "--lines", "--partition", "0", "--rate", strconv.Itoa(perSecond),
	}
	for _, address := range l.n.natives() {
		args = append(args, "--nodes", address)
	}
	l.cmd = exec.Command(binary, args...)
	l.out.Reset()
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	in, err := l.cmd.StdinPipe()
	l.n.try(err)
	l.n.try(l.cmd.Start())
	go l.feed(in)
}

// feed writes all lines to a process, until it is killed.
func (l *lines) feed(in io.WriteCloser) {
	var buf []byte
	for k := int64(0); k < l.last.Load(); k++ {
		if buf = append(strconv.AppendInt(buf, k, 10), '\n'); len(buf) < 4<<10 && k < l.seen.Load() {
			continue // it was published before: pub skips it
		}
		if _, err := in.Write(buf); err != nil {
			return
		}
		buf = buf[:0]
	}
	_, _ = in.Write(buf)
	_ = in.Close()
}

// restart kills pub and starts it again.
func (l *lines) restart() {
	l.n.t.Helper()
	if err := l.cmd.Process.Kill(); err != nil {
		l.n.t.Fatalf("penstock pub has ended: %v\n%s", err, &l.out)
	}
	_ = l.cmd.Wait()
	l.kills++
	l.start(linesPerSecond)
}

// more waits until n more lines are stored.
func (l *lines) more(n int64) {
	l.n.t.Helper()
	l.n.await("lines", n, l.seen.Load)
}

// end ends the input, waits for pub, and returns how many lines there are.
func (l *lines) end() int64 {
	l.n.t.Helper()
	l.n.try(l.cmd.Process.Kill())
	_ = l.cmd.Wait()
	l.kills++
	last := l.seen.Load() + 2000 // more than can be stored and not seen yet
	l.last.Store(last)
	l.start(0)
	if err := l.cmd.Wait(); err != nil {
		l.n.t.Fatalf("penstock pub: %v\n%s", err, &l.out)
	}
	l.cmd = nil
	l.n.t.Logf("the last penstock pub: %s", l.out.String())
	return last
}

// checkPartition reads a whole partition with a client that knows nothing yet: messages 0 to count-1, each once, in
// order, and nothing else.
func (n *natives) checkPartition(topic string, partition int, count int64) {
	n.t.Helper()
	c := n.dialNative()
	defer c.Close()
	ctx := n.within(nativePatience)
	r, err := c.Reader(ctx, topic, partition, client.FromOldest())
	n.try(err)
	defer r.Close()
	for k := range count {
		m, err := r.Next(ctx)
		want := numberOf(partition, k)
		if topic == linesTopic {
			want = strconv.AppendInt(nil, k, 10)
		}
		if err != nil || !bytes.Equal(m.Body, want) {
			n.t.Fatalf("message %d of partition %d of %s is %v %q: %v", k, partition, topic, m.ID, m.Body, err)
		}
	}
	if at, _ := r.Position(); int64(at.MsgID()) != count {
		n.t.Errorf("partition %d of %s: %d messages were read, and the position is %v", partition, topic, count, at)
	}
	if end, ok := r.Newest(); !ok || int64(end.MsgID()) != count {
		n.t.Errorf("partition %d of %s has messages up to %v, and %d were written", partition, topic, end, count)
	}
}
