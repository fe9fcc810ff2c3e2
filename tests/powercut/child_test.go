//go:build powercut

package powercut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/replicate"
	"penstock/tests/support/kvfile"
)

// order is what a child is told, as JSON in the environment.
type order struct {
	Mode     string   // ring, pwritev2 or fallback
	Dirs     []string // data directories: one, or three of a cluster
	Meta     string   // directory of the cluster's metadata: on another disk, as etcd's could be
	Expected string   // file of the bodies that must be there, a line each
	Life     int      // number of the child
	Backup   string   // directory of a backup that the first node begins under load; empty: none
	Rate     int64    // of the backup
}

const (
	orderVariable = "TEST_POWERCUT_CHILD"
	topicName     = "cut"
	producers     = 4 // per node
	partitions    = 3 // of the topic in a cluster: every node leads one
)

// openTimeout and readTimeout (without one more message found) end a child that makes no progress: the machine may be
// busy. TEST_PATIENCE shortens them where messages are to be lost (tools/mutants).
var openTimeout, readTimeout = func() (open, read time.Duration) {
	if d, err := time.ParseDuration(os.Getenv("TEST_PATIENCE")); err == nil {
		return d, d
	}
	return 2 * time.Minute, 30 * time.Second
}()

// Lines that a child prints, one write each, so that what was acknowledged is known even of a child that is killed in
// the next moment.
const (
	lineLoad   = "load" // what was acknowledged before is there; the load begins
	lineAcked  = "acked "
	lineLost   = "lost "
	lineFailed = "failed"  // a publish failed: the disk is gone
	lineBackup = "backup " // and its state
)

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }

// childMain runs engines until it is killed.
func childMain(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	if o.Mode == "fallback" {
		if err := refuseModernWrites(); err != nil {
			return err
		}
	}
	expected, err := readLines(o.Expected)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	engines, err := o.open(ctx)
	if err != nil {
		return lost(expected, err)
	}
	topics, err := o.topics(ctx, engines)
	if err != nil {
		return lost(expected, err)
	}
	wait := readTimeout
	if len(engines) == 1 {
		wait = time.Second // what an open node does not find at once it will never find
	}
	if err := readAll(ctx, topics[0], expected, wait); err != nil {
		return lost(expected, err)
	}
	say(lineLoad)
	for i, t := range topics {
		for p := range producers {
			go produce(t, fmt.Sprintf("%d.%d.%d", o.Life, i, p), 8<<(3*p))
		}
	}
	if o.Backup != "" {
		return o.backUp(engines[0])
	}
	select {}
}

func readLines(path string) (map[string]bool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		all[strings.TrimSuffix(line, "\n")] = true
	}
	return all, nil
}

// options make files small, so that rotation, checkpoints and segments meet the cuts too.
func (o *order) options(i int) node.Options {
	io := map[string]string{"ring": "uring", "pwritev2": "pwrite", "fallback": "auto"}[o.Mode]
	return node.Options{
		DataPath: o.Dirs[i], NodeID: fmt.Sprintf("n%d", i+1), IO: io, LockWait: readTimeout,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", i+1),
		BufferBytes: 4 << 20, CommitFileBytes: 1 << 20, CommitLiveBytes: 4 << 20,
		MinSegmentBytes: 64 << 10, MaxSegmentBytes: 1 << 20, RetentionInterval: 50 * time.Millisecond,
		RetentionBytes:  16 << 20,
		MaxMessageBytes: 64 << 10, MaxBatchBytes: 256 << 10,
	}
}

// open starts all nodes at once.
func (o *order) open(ctx context.Context) ([]*node.Engine, error) {
	engines, errs := make([]*node.Engine, len(o.Dirs)), make([]error, len(o.Dirs))
	var metadata kv.Store
	if len(o.Dirs) > 1 {
		store, err := kvfile.Open(filepath.Join(o.Meta, "metadata"))
		if err != nil {
			return nil, err
		}
		metadata = store
	}
	var wg sync.WaitGroup
	for i := range o.Dirs {
		wg.Go(func() { engines[i], errs[i] = o.openOne(ctx, i, metadata) })
	}
	wg.Wait()
	for i, e := range engines {
		if e == nil {
			continue
		}
		if info := e.Info(); info.IOEngine+" "+info.IOReason != writers[o.Mode] || !info.Direct {
			errs = append(errs, fmt.Errorf("node %d writes with %s (%s), direct %v: that is not %s",
				i+1, info.IOEngine, info.IOReason, info.Direct, o.Mode))
		}
	}
	return engines, errors.Join(errs...)
}

func (o *order) openOne(ctx context.Context, i int, metadata kv.Store) (*node.Engine, error) {
	opts := o.options(i)
	if metadata != nil {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		opts.Cluster = &node.ClusterOptions{
			Store: cluster.New(metadata, cluster.Options{
				ControllerTick: 20 * time.Millisecond, LeaseTTL: time.Minute, Logger: opts.Logger,
			}),
			Listener: ln, Node: meta.Node{Host: "127.0.0.1", Peer: ln.Addr().String()},
			// All three stay in sync, however slow this machine is: then each has what was acknowledged.
			Replication: replicate.Config{HeartbeatNs: 20e6, RetryNs: 100e6, LagMaxNs: 60e9, JoinNs: 200e6},
			JoinTimeout: openTimeout,
		}
	}
	return node.Open(ctx, opts)
}

// writers are how the engine describes its way of writing in each mode.
var writers = map[string]string{
	"ring":     "uring chosen by configuration",
	"pwritev2": "pwrite chosen by configuration",
	"fallback": "pwrite the kernel or file system has no RWF_DSYNC",
}

// topics is the topic at each node.
func (o *order) topics(ctx context.Context, engines []*node.Engine) ([]*node.Topic, error) {
	var all []*node.Topic
	if len(engines) > 1 && o.Life == 0 {
		if _, err := engines[0].CreateTopic(ctx, topicName, partitions); err != nil {
			return nil, err
		}
	}
	for _, e := range engines {
		for {
			t, err := e.Topic(ctx, topicName)
			if err == nil {
				all = append(all, t)
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("the topic is not served: %w", err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return all, nil
}

// lost says that what is expected and was not found is lost, and returns why it cannot be read: a node that does not
// start any more has lost it.
func lost(expected map[string]bool, why error) error {
	for name := range expected {
		say(lineLost + name)
	}
	return why
}

// readAll reads what every partition stores until everything that is expected was found, or nothing more is found for a
// while: what is missing then is lost. It reads as Peek does, without a consumer, so that it judges what is stored and
// nothing else. What it finds it takes out of expected.
func readAll(ctx context.Context, t *node.Topic, expected map[string]bool, wait time.Duration) error {
	for end := time.Now().Add(wait); len(expected) > 0; time.Sleep(10 * time.Millisecond) {
		before := len(expected)
		var err error
		for p := range t.Partitions() {
			err = errors.Join(err, readPartition(ctx, t, p, expected))
		}
		switch {
		case len(expected) < before:
			end = time.Now().Add(wait)
		case time.Now().After(end) && err != nil:
			return err
		case time.Now().After(end):
			return lost(expected, nil)
		}
	}
	return nil
}

func readPartition(ctx context.Context, t *node.Topic, partition int, expected map[string]bool) error {
	for from := node.ID(0); ; {
		found, err := t.Peek(ctx, partition, from, channel.MaxListCount)
		if err != nil || len(found) == 0 {
			return err
		}
		for i := range found {
			name, _, _ := strings.Cut(string(found[i].Body), " ")
			delete(expected, name)
			from = max(from, found[i].ID+1)
		}
	}
}

var failed atomic.Bool

// produce publishes for ever and says what was acknowledged.
func produce(t *node.Topic, prefix string, padBytes int) {
	pad := strings.Repeat("x", padBytes)
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s.%d", prefix, i)
		if _, err := t.PublishMessage(context.Background(), node.Outgoing{Body: []byte(name + " " + pad)}); err == nil {
			say(lineAcked + name)
			acknowledged.Add(1)
			continue
		}
		if failed.CompareAndSwap(false, true) {
			say(lineFailed)
		}
		time.Sleep(time.Millisecond)
	}
}
