//go:build golden

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
)

var (
	goldenOut  = flag.String("golden-out", "", "directory that TestMakeGolden writes to")
	goldenName = flag.String("golden-name", "", "what the files' names begin with: the level")
)

// TestMakeGolden writes the golden directories of the version that it is compiled with; see `make golden`.
func TestMakeGolden(t *testing.T) {
	for kind, nodes := range map[string]int{"single": 1, "three": 3} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		g, err := openGolden(ctx, dir, nodes)
		if err != nil {
			t.Fatal(err)
		}
		m, err := fillGolden(ctx, g)
		if err != nil {
			t.Fatal(kind, err)
		}
		if err := g.close(); err != nil {
			t.Fatal(err)
		}
		data, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "manifest.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(*goldenOut, *goldenName+"-"+kind+".tar.gz")
		pack := exec.Command("tar", "-czf", out, "--sparse",
			"--exclude=spare/*", "--exclude=meta.kv.lock", "-C", dir, ".")
		if said, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
	}
}

// golden fills one directory.
type golden struct {
	ctx context.Context
	g   *goldenNodes
	e   *node.Engine
}

// goldenLater are steps of fillGolden that only versions of a higher level can do, and the topics that they make. Files
// that are not compiled in the trees of older versions add to both.
var (
	goldenLater  []func(*golden) error
	goldenTopics = []string{"orders", "orders.DLQ", "held", "carry"}
)

// fillGolden makes topics and channels with every kind of control entry.
func fillGolden(ctx context.Context, g *goldenNodes) (*goldenManifest, error) {
	f := &golden{ctx, g, g.engines[0]}
	for _, step := range []func() error{f.orders, f.held, f.carried} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	for _, step := range goldenLater {
		if err := step(f); err != nil {
			return nil, err
		}
	}
	var m *goldenManifest
	err := goldenUntil(ctx, "everything can be read", func() (err error) {
		m, err = g.describe(ctx, goldenTopics, "carry")
		return err
	})
	return m, err
}

func (f *golden) topic(name string) (t *node.Topic, err error) {
	err = goldenUntil(f.ctx, "topic "+name, func() error { t, err = f.e.CreateTopic(f.ctx, name, 1); return err })
	return t, err
}

func (f *golden) publish(t *node.Topic, prefix string, from, to int) error {
	for i := from; i < to; i++ {
		body := fmt.Appendf(nil, "%s %d", prefix, i)
		if err := goldenUntil(f.ctx, "publishing", func() error {
			_, err := t.PublishMessage(f.ctx, node.Outgoing{Body: body})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (f *golden) channel(t *node.Topic, name string) (c *node.Channel, err error) {
	err = goldenUntil(f.ctx, "channel "+name, func() error { c, err = t.Channel(f.ctx, name); return err })
	return c, err
}

var errLater = errors.New("later")

// consume takes n messages, requeues those whose body is in later, finishes the others, and waits until just left
// messages are unconfirmed.
func (f *golden) consume(c *node.Channel, n, left int, later ...string) error {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	seen := 0
	o := node.ConsumeOptions{MaxInFlight: 1, RequeueDelay: 50 * time.Minute}
	err := c.Consume(ctx, o, func(_ context.Context, m *node.Message) error {
		if seen++; seen > n {
			<-ctx.Done() // it goes back when the consumer is closed
			return errLater
		}
		if seen == n {
			defer time.AfterFunc(200*time.Millisecond, cancel)
		}
		if slices.Contains(later, string(m.Body)) {
			return errLater
		}
		return nil
	})
	if err != nil {
		return err
	}
	return f.left(c, left)
}

func (f *golden) left(c *node.Channel, want int) error {
	return goldenUntil(f.ctx, fmt.Sprintf("%d messages of %s are left", want, c.Name()), func() error {
		all, err := c.Peek(f.ctx, node.PeekOptions{Partition: -1, Count: 1000})
		if err == nil && len(all) != want {
			err = fmt.Errorf("there are %d", len(all))
		}
		return err
	})
}

func (f *golden) orders() error {
	t, err := f.topic("orders")
	if err != nil {
		return err
	}
	if err := f.publish(t, "order", 0, 3); err != nil {
		return err
	}
	channels := map[string]*node.Channel{}
	for _, name := range []string{"billing", "audit", "skipper", "replay", "limited", "gone"} {
		if channels[name], err = f.channel(t, name); err != nil {
			return err
		}
	}
	if err := f.publish(t, "order", 3, 10); err != nil {
		return err
	}
	if _, err := t.PublishMessage(f.ctx, node.Outgoing{Body: []byte("delayed"), Delay: 29 * 24 * time.Hour}); err != nil {
		return err
	}
	if err := f.consume(channels["billing"], 6, 6, "order 4"); err != nil { // 11 less 5; order 4 waits
		return err
	}
	// The other channels begin with order 3.
	if err := f.consume(channels["replay"], 6, 2); err != nil {
		return err
	}
	all, err := channels["billing"].Peek(f.ctx, node.PeekOptions{Partition: -1, Count: 1})
	if err != nil || len(all) != 1 {
		return fmt.Errorf("peeking: %d, %w", len(all), err)
	}
	for _, do := range []func() error{
		func() error { return channels["audit"].Pause(f.ctx) },
		func() error { return channels["skipper"].Skip(f.ctx, true) },
		func() error { return channels["replay"].Seek(f.ctx, node.SeekTo{Kind: node.SeekID, ID: all[0].ID}) },
		func() error { return t.DeleteChannel(f.ctx, "gone") },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	s, err := channels["limited"].ReadSettings(f.ctx)
	if err != nil {
		return err
	}
	s.MaxAttempts = 1
	if _, err := channels["limited"].Configure(f.ctx, s); err != nil {
		return err
	}
	return f.deadLetters(channels["limited"])
}

// deadLetters makes two messages fail until they become dead letters, and waits until they are in the dead-letter
// topic.
func (f *golden) deadLetters(c *node.Channel) error {
	if err := f.consume(c, 7, 1, "order 4", "order 5"); err != nil {
		return err
	}
	return goldenUntil(f.ctx, "dead letters", func() error {
		t, ok := f.e.Catalog().LookupTopic("orders.DLQ")
		if !ok {
			return errors.New("there is no topic")
		}
		all, err := t.Peek(f.ctx, -1, 0, 10)
		if err == nil && len(all) != 2 {
			err = fmt.Errorf("there are %d", len(all))
		}
		return err
	})
}

func (f *golden) held() error {
	t, err := f.topic("held")
	if err != nil {
		return err
	}
	if _, err := f.channel(t, "c"); err != nil {
		return err
	}
	if err := f.publish(t, "before", 0, 2); err != nil {
		return err
	}
	if err := t.Pause(f.ctx); err != nil {
		return err
	}
	if err := f.publish(t, "dropped", 0, 3); err != nil {
		return err
	}
	if err := t.Empty(f.ctx); err != nil {
		return err
	}
	return f.publish(t, "held", 0, 3)
}

// carried publishes and confirms messages until only deferred ones keep the beginning of the log, and these are
// carried.
func (f *golden) carried() error {
	t, err := f.topic("carry")
	if err != nil {
		return err
	}
	c, err := f.channel(t, "c")
	if err != nil {
		return err
	}
	if _, err := t.PublishMessage(f.ctx, node.Outgoing{Body: []byte("later"), Delay: 29 * 24 * time.Hour}); err != nil {
		return err
	}
	body := bytes.Repeat([]byte("x"), 8<<10)
	stored := func() int64 { s := f.g.stats("carry"); return s.StoredBytes }
	for n := range 400 {
		if err := f.publish(t, string(body), n, n+1); err != nil {
			return err
		}
		if n%20 == 19 {
			if err := f.consume(c, 20, 1); err != nil {
				return err
			}
			if n > 100 && stored() < 300<<10 {
				return nil
			}
		}
	}
	return fmt.Errorf("%d bytes are stored", stored())
}
