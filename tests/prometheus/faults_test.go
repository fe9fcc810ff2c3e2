//go:build prometheus

package prometheus

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/tests/cluster/harness"
)

// small lets the logs and the memory of a node be small, and its segments be read often, so that faults show soon.
var small = []string{
	"--commit-file-bytes", "16MiB", "--commit-live-bytes", "33MiB", "--max-segment-bytes", "8MiB",
	"--buffer-bytes", "4MiB", "--max-batch-bytes", "1MiB", "--scrub-interval", "2s", "--slow-commit", "200ms",
}

// freeBytesOnly changes PenstockDiskLow so that it looks at the free bytes and not at what is foreseen: a node fills
// its new disk quickly, and other programs of the machine fill a disk that the nodes share with them.
var freeBytesOnly = []string{"< 20e9", "< 2e9"}

// quick changes the rules so that they fire after seconds.
var quick = append([]string{"[5m]", "[10s]", "[10m]", "[10s]", "> 3600", "> 3"}, freeBytesOnly...)

const diskBytes = 4 << 30 // of a sparse file: PenstockDiskLow is silent above 2 GB

// single is a node and a Prometheus that scrapes it.
type single struct {
	t     *testing.T
	c     *harness.Cluster
	n     *harness.Node
	s     *server
	disk  *harness.Volume // of the node's own; nil: it has none
	tools string          // the program engine
}

// startOnDisk starts a node on a file system of its own, which may fill up or hang.
func startOnDisk(t *testing.T) *single {
	t.Helper()
	if err := harness.FreezeMissing(); err != nil {
		t.Skipf("this machine cannot make a disk that fills up or hangs: %v", err)
	}
	disk, err := harness.NewVolume(t.TempDir(), "disk", diskBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	f := startSingle(t, harness.Options{Serve: small, Volumes: map[int]string{0: filepath.Join(disk.Path, "data")}})
	f.disk = disk
	return f
}

// startSingle starts a node with the topic orders and its channel mail, of which messages were taken.
func startSingle(t *testing.T, o harness.Options) *single {
	t.Helper()
	tools, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o.Dir = t.TempDir()
	c, err := harness.Single(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(c.Nodes[0].LogTail(4 << 10))
		}
	})
	f := &single{t, c, c.Nodes[0], startPrometheus(t, c.Nodes, quick), nil, tools}
	f.engine("topic", "create", "orders")
	f.engine("channel", "create", "orders", "mail")
	f.publish(20, 100)
	f.take(20)
	f.s.eventually("the node is scraped", func() bool { return f.s.series(`up{job="penstock"} == 1`) == 1 })
	return f
}

// engine runs a command against the node.
func (f *single) engine(args ...string) {
	f.t.Helper()
	args = append(args, "--http-address", f.n.HTTP)
	if out, err := exec.Command(f.tools, args...).CombinedOutput(); err != nil {
		f.t.Fatalf("engine %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// publish sends messages to orders. Their answers do not matter.
func (f *single) publish(count, bytes int) { f.publishTo("orders", count, bytes) }

func (f *single) publishTo(topic string, count, bytes int) {
	body := strings.Repeat("x", bytes)
	for range count {
		reply, err := http.Post("http://"+f.n.HTTP+"/pub?topic="+topic, "", strings.NewReader(body))
		if err == nil {
			_ = reply.Body.Close()
		}
	}
}

// consume starts a consumer of a channel of orders. taken gets an element per delivery, at most 1000.
func (f *single) consume(channel string, answer func(*nsq.Message)) (taken chan struct{}, stop func()) {
	f.t.Helper()
	config := nsq.NewConfig()
	config.MaxInFlight = 20
	consumer, err := nsq.NewConsumer("orders", channel, config)
	f.must(err)
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	taken = make(chan struct{}, 1000)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		m.DisableAutoResponse()
		answer(m)
		taken <- struct{}{}
		return nil
	}))
	f.must(consumer.ConnectToNSQD(f.n.NSQ))
	return taken, func() {
		consumer.Stop()
		<-consumer.StopChan
	}
}

// take finishes that many messages of the channel mail.
func (f *single) take(count int) {
	f.t.Helper()
	taken, stop := f.consume("mail", (*nsq.Message).Finish)
	defer stop()
	for i := range count {
		select {
		case <-taken:
		case <-time.After(patience):
			f.t.Fatalf("%d of %d messages came", i, count)
		}
	}
}

// fault makes a fault at a healthy node: the alert fires, and after the end of the fault it is silent again.
func (f *single) fault(alert string, begin, end func()) {
	f.t.Helper()
	firing := func() bool {
		for _, name := range f.s.firing() {
			if name == alert {
				return true
			}
		}
		return false
	}
	f.s.eventually("before "+alert+" no alert fires", func() bool { return len(f.s.firing()) == 0 })
	begin()
	f.s.eventually(alert+" fires", firing)
	end()
	f.s.eventually(alert+" is silent", func() bool { return !firing() })
}

func (f *single) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// Alerts of the storage and of channels fire when a real node has the fault, and end after it.
func TestFaultsOfOneNode(t *testing.T) {
	f := startOnDisk(t)
	f.fault("PenstockChannelLag", func() { f.publish(1, 100) }, func() { f.take(1) })

	f.engine("channel", "create", "orders", "once")
	f.engine("channel", "set", "orders", "once", "--max-attempts", "1")
	f.s.eventually("the new channel is scraped", func() bool {
		return f.s.series(`penstock_channel_dead_lettered_total{channel="once"} == 0`) == 1
	})
	_, stop := f.consume("once", func(m *nsq.Message) { m.RequeueWithoutBackoff(0) })
	f.fault("PenstockDeadLetters", func() { f.publish(1, 100) }, func() { f.take(1) })
	stop()
	f.engine("channel", "delete", "orders", "once")

	f.fault("PenstockDiskLow", func() { f.must(f.disk.Fill(1 << 30)) }, func() { f.must(f.disk.Free()) })

	f.fault("PenstockCommitSlow", func() {
		f.must(f.disk.Freeze())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.publish(1, 100)
		}()
		f.s.eventually("the disk counts as slow or hung", func() bool {
			return f.s.series(`penstock_disk_state{state="good"} == 0`) == 1
		})
		f.must(f.disk.Thaw())
		<-done
	}, func() { f.take(1) })

	ctx, end := context.WithCancel(t.Context())
	defer end()
	load := exec.CommandContext(ctx, f.tools, "bench", "pub", "--nsq-address", f.n.NSQ, "--http-address", f.n.HTTP,
		"--topic", "load", "--keep-topic",
		"--size", "1000", "--batch", "200", "--connections", "16", "--in-flight", "4",
		"--messages", "1200000")
	f.fault("PenstockStalls", func() { f.must(load.Start()) }, func() {
		end()
		_ = load.Wait()
	})

	f.engine("topic", "delete", "load")
	f.fault("PenstockCorruption", func() {
		f.publish(400, 10_000) // nobody takes them: soon another alert fires, too
		f.rot()
	}, func() {
		f.engine("topic", "delete", "orders") // nothing can repair the only copy
		f.must(f.n.Kill())
		f.must(f.n.Restart(t.Context()))
	})
}

// rot turns a bit of a stored message of orders.
func (f *single) rot() {
	f.t.Helper()
	const at = 1 << 20
	f.s.eventually("a segment has a message there", func() bool {
		files, err := filepath.Glob(filepath.Join(f.n.DataPath, "topics/*/*/*.seg"))
		f.must(err)
		for _, name := range files {
			if flip(f.t, name, at) {
				return true
			}
		}
		return false
	})
}

// flip turns a bit of a file, unless nothing is stored there.
func flip(t *testing.T, name string, at int64) bool {
	t.Helper()
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var b [1]byte
	_, err = file.ReadAt(b[:], at)
	if err == io.EOF || b[0] == 0 {
		return false
	}
	if err == nil {
		b[0] ^= 1
		_, err = file.WriteAt(b[:], at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}
