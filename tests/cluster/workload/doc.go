// Package workload is the clients of a test: producers and consumers that speak to real nodes, survive what happens to
// them, and write down everything they see for package history to judge.
//
// Producers publish unique values, each once: what failed is never sent again, so that every value has one fate. Both
// kinds exist twice: on the protocol itself, where the moment of every answer is known and many publishes are under way
// at once, and on go-nsq, which is what users have.
package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock/tests/cluster/history"
)

// Run is a set of clients of one topic with one history.
type Run struct {
	Topic    string
	Recorder *history.Recorder
	Nodes    []string          // NSQ addresses
	Lookups  []string          // addresses of nsqlookupd's HTTP API
	Names    map[string]string // of NSQ addresses, for the history

	tally     tally
	producers group
	consumers group
}

// group is clients that are stopped together.
type group struct {
	mu     sync.Mutex
	cancel context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup
}

func (g *group) run(do func(ctx context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		g.ctx, g.cancel = context.WithCancel(context.Background())
	}
	ctx := g.ctx
	g.wg.Go(func() { do(ctx) })
}

func (g *group) stop() {
	g.mu.Lock()
	cancel := g.cancel
	g.ctx, g.cancel = nil, nil
	g.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	g.wg.Wait()
}

// StopProducers ends publishing: what is under way is waited for, each answer at most its AnswerTimeout.
func (r *Run) StopProducers() { r.producers.stop() }

// StopConsumers closes the consumers' connections.
func (r *Run) StopConsumers() { r.consumers.stop() }

// Drain waits until every channel got what was acknowledged. The error says what is missing; the checker says it
// better.
func (r *Run) Drain(ctx context.Context) error {
	for {
		missing := r.tally.missing()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New(missing)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Acked is how many values were acknowledged so far.
func (r *Run) Acked() int {
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	return len(r.tally.acked)
}

// add records the event.
func (r *Run) add(e history.Event) {
	if e.Node != "" && r.Names[e.Node] != "" {
		e.Node = r.Names[e.Node]
	}
	r.Recorder.Add(e)
}

// Mark records what the nemesis does: Fault and Heal bracket it. The number joins the two.
func (r *Run) Mark(op history.Op, number uint64, kind, node string) {
	r.Recorder.Add(history.Event{Client: "nemesis", Op: op, Seq: number, Detail: kind, Node: node})
}

// CreateChannel records that create made a channel; first says that it is the topic's first one.
func (r *Run) CreateChannel(channel string, first bool, create func() error) error {
	e := history.Event{Client: "admin", Op: history.Channel, Topic: r.Topic, Channel: channel, First: first}
	r.add(e)
	if err := create(); err != nil {
		return err
	}
	e.Op = history.Exists
	r.add(e)
	r.tally.exists(channel, first)
	return nil
}
