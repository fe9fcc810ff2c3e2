package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// view keeps what the client knows about the cluster: the partitions of the topics that are used, and their leaders.
// Its goroutine asks one node at a time, which then pushes every change. A node that cannot be reached, that leaves,
// or whose answer turns out to be old is exchanged for the next one.
type view struct {
	client *Client
	kicked chan struct{}
	stale  atomic.Bool // somebody was sent to a node that does not lead
	known  atomic.Pointer[knowledge]
	ready  chan struct{} // closed when a node has accepted the client
	once   sync.Once

	creating atomic.Bool // create runs
	created  atomic.Bool // create has ended, and the node was not asked since
	missed   []string    // what create was asked for last; only run uses it

	mu        sync.Mutex // guards the rest, and orders the changes of known
	topics    map[string]*wanted
	redirects uint64            // how often redirect has changed a leader
	failed    error             // why the newest node could not be used
	tellers   map[string]teller // by known address
	hinted    string            // the address of a known node that is asked next; empty: the one whose turn it is
}

// wanted is a topic that producers or readers use.
type wanted struct {
	users, creators int
	made            bool // it exists, or a node has refused to create it: do not ask for that again
}

// knowledge is an immutable snapshot of what the client knows about leaders and addresses. A goroutine that learns
// something makes a new one, and closes the channel changed of the old one, which wakes all that wait for news.
type knowledge struct {
	topics  map[string]*topic
	nodes   []string // addresses
	changed chan struct{}
}

// topic is what a node said about a topic.
type topic struct {
	era      netproto.ID // see eraOf
	revision uint64      // in the era
	status   netproto.Status
	id       uuid.UUID
	leaders  []string // addresses, by partition; empty: none
	// redirected is view.redirects when redirect changed leaders last; they are not those of the revision then. 0: never
	redirected uint64
}

func newView(c *Client) *view {
	v := &view{
		client: c, kicked: make(chan struct{}, 1), ready: make(chan struct{}), topics: make(map[string]*wanted),
		tellers: make(map[string]teller),
	}
	v.known.Store(&knowledge{topics: map[string]*topic{}, changed: make(chan struct{})})
	return v
}

func (v *view) wake() { signal(v.kicked) }

// doubt says that a node which should lead a partition does not.
func (v *view) doubt() {
	v.stale.Store(true)
	v.wake()
}

// hint notes where a node sends the client. It only changes who is asked next, and only to a node that the client
// knows: nothing else is believed.
func (v *view) hint(address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Contains(v.client.seeds, address) || slices.Contains(v.known.Load().nodes, address) {
		v.hinted = address
	}
}

// redirect notes that the node which the client takes for a partition's leader, from, says that the node to leads. If
// the client knows that node, it goes there at once, and asks for metadata. Metadata of the same revision replaces the
// redirection only as the answer to a question that was asked after it; an older answer would send the client back.
func (v *view) redirect(topicName string, partition int, from, to string) {
	v.doubt()
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.known.Load()
	t := known.topics[topicName]
	if t == nil || partition >= len(t.leaders) || t.leaders[partition] != from || to == from ||
		!slices.Contains(v.client.seeds, to) && !slices.Contains(known.nodes, to) {
		return
	}
	v.publishLocked(known.nodes, func(topics map[string]*topic) {
		moved := *t
		moved.leaders = slices.Clone(t.leaders)
		moved.leaders[partition] = to
		v.redirects++
		moved.redirected = v.redirects
		topics[topicName] = &moved
	})
}

// next returns the address of the node to ask: the hinted one, or that whose turn it is.
func (v *view) next(turn int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if to := v.hinted; to != "" {
		v.hinted = ""
		return to
	}
	all := slices.Concat(v.client.seeds, v.known.Load().nodes)
	return all[turn%len(all)]
}

// want adds a user of a topic; unwant removes it. An error means that it was not added.
func (v *view) want(name string, create bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.topics[name]
	if w == nil {
		if len(v.topics) >= wire.MaxTopicCount {
			return fmt.Errorf("client: it uses %d topics, which is the most that one client can; close some, or dial another "+
				"client", wire.MaxTopicCount)
		}
		w = new(wanted)
		v.topics[name] = w
	}
	if w.users++; create {
		w.creators++
		w.made = false
	}
	v.wake()
	return nil
}

func (v *view) unwant(name string, create bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.topics[name]
	if create {
		w.creators--
	}
	if w.users--; w.users == 0 {
		delete(v.topics, name)
		v.publishLocked(v.known.Load().nodes, func(map[string]*topic) {})
	}
	v.wake()
}

// publishLocked replaces known. The caller holds mu.
func (v *view) publishLocked(nodes []string, change func(map[string]*topic)) {
	old := v.known.Load()
	next := &knowledge{topics: make(map[string]*topic), nodes: nodes, changed: make(chan struct{})}
	for name, t := range old.topics {
		next.topics[name] = t
	}
	change(next.topics)
	for name := range next.topics {
		if v.topics[name] == nil {
			delete(next.topics, name)
		}
	}
	v.known.Store(next)
	close(old.changed)
}

// question is what a node was asked; its zero value: nothing, the node says it of its own accord.
type question struct {
	create    bool   // the topics
	redirects uint64 // view.redirects when it was asked
}

// learn takes in what a node says. An error ends the connection.
func (v *view) learn(from *link, payload []byte, to question) error {
	var m wire.Metadata
	if err := wire.Decode(payload, &m); err != nil {
		return err
	}
	addresses := make([]string, len(m.Nodes))
	for i, n := range m.Nodes {
		if addresses[i] = n.Address; n.Address == "" {
			addresses[i] = from.node.address
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	nodes := slices.Clone(v.known.Load().nodes)
	for i, a := range addresses {
		if !slices.Contains(nodes, a) {
			nodes = append(nodes, a)
			v.tellers[a] = teller{m.Nodes[i].Name, from.node.address}
		}
	}
	if over := len(nodes) - wire.MaxNodeCount; over > 0 { // the oldest ones
		nodes = slices.Delete(nodes, 0, over)
		maps.DeleteFunc(v.tellers, func(a string, _ teller) bool { return !slices.Contains(nodes, a) })
	}
	v.publishLocked(nodes, func(topics map[string]*topic) {
		for i := range m.Topics {
			w := &m.Topics[i]
			if known := v.topics[w.Name]; known != nil && (w.Status == netproto.StatusOK ||
				to.create && meaning(w.Status) == verdictRefused) {
				known.made = true
			}
			if old := topics[w.Name]; old != nil && old.era == from.era &&
				(m.Revision < old.revision || m.Revision == old.revision && to.redirects < old.redirected) {
				continue
			}
			t := &topic{
				era: from.era, revision: m.Revision, status: w.Status, id: w.ID, leaders: make([]string, len(w.Partitions)),
			}
			for p := range w.Partitions {
				if at := w.Partitions[p].Leader; at != wire.NoLeader {
					t.leaders[p] = addresses[at]
				}
			}
			topics[w.Name] = t
		}
	})
	return nil
}

// teller is which node an address is of, and the address of the node that said so first.
type teller struct{ node, by string }

// tellerOf returns which node announced an address. It returns the zero value if the program named the address, or
// nobody did.
func (v *view) tellerOf(address string) teller {
	if slices.Contains(v.client.seeds, address) {
		return teller{}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tellers[address]
}

// run is the view's goroutine.
func (v *view) run() {
	c := v.client
	fails := 0
	for at := 0; c.ctx.Err() == nil; at++ {
		n := c.acquire(v.next(at), v)
		began := time.Now()
		err := v.follow(n)
		c.release(n, v)
		if err != errStale {
			v.fail(err)
		}
		if fails++; time.Since(began) >= c.o.MaxDelay {
			fails = 1
		}
		timer := time.NewTimer(c.o.delay(fails))
		select {
		case <-timer.C:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

// fail sets failed, and wakes those who wait for a change, so that they look at it.
func (v *view) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = err
	v.publishLocked(v.known.Load().nodes, func(map[string]*topic) {})
}

// state is what is known, and whether nodes need not be asked to create the topic any more.
func (v *view) state(name string) (known *knowledge, made bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known.Load(), v.topics[name].made
}

func (v *view) failure() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failed
}

var errStale = errors.New("client: what the node says about the cluster is old")

// follow waits for the connection to the node, asks, and repeats that when other topics are wanted. It returns the
// reason to go to another node.
func (v *view) follow(n *node) error {
	ctx := v.client.ctx
	var on *link
	for ; ; v.await(ctx) {
		if ctx.Err() != nil {
			return ErrClosed
		}
		l, attempts, err := n.state()
		switch {
		case on == nil && l == nil && attempts > 0:
			return err
		case on == nil && l == nil:
			continue
		case on != nil && l != on:
			return errLinkEnded
		case l.leaving.Load():
			return errStale
		case v.stale.Swap(false) && on != nil:
			return errStale
		}
		on = l
		if err := v.ask(l); err != nil {
			return err
		}
		v.mu.Lock()
		v.failed = nil
		v.mu.Unlock()
		v.once.Do(func() { close(v.ready) })
	}
}

// await waits for the next thing to do. A topic that could not be created for now is asked for again.
func (v *view) await(ctx context.Context) {
	timer := time.NewTimer(v.client.o.MaxDelay)
	defer timer.Stop()
	for {
		select {
		case <-v.kicked:
			return
		case <-ctx.Done():
			return
		case <-timer.C:
			if _, missing := v.wishes(); len(missing) > 0 {
				return
			}
			timer.Reset(v.client.o.MaxDelay)
		}
	}
}

// wishes are the topics that the client wants to hear of, and those of them that a producer needs and that are not
// known to exist.
func (v *view) wishes() (all, missing []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.known.Load()
	for name, w := range v.topics {
		all = append(all, name)
		if t := known.topics[name]; w.creators > 0 && !w.made && (t == nil || t.status != netproto.StatusOK) {
			missing = append(missing, name)
		}
	}
	slices.Sort(all)
	slices.Sort(missing)
	return all, missing
}

// ask tells the node which topics the client wants to hear of, and lets create ask it to create those that producers
// use and that do not exist.
func (v *view) ask(l *link) error {
	created := v.created.Swap(false)
	all, _ := v.wishes()
	if err := v.question(l, all, false); err != nil {
		return err
	}
	_, missing := v.wishes()
	if len(missing) == 0 || created && slices.Equal(missing, v.missed) {
		return nil // what the node did not create it is asked for again after a pause: see await
	}
	if v.creating.CompareAndSwap(false, true) {
		v.missed = missing
		v.client.goroutines.Go(func() { v.create(l, missing) })
	}
	return nil
}

// create asks the node to create topics. The node may have to wait for the metadata's store, which must not hold up
// what the client does with other topics. The node is told once more then what to announce, because an older one takes
// the topics that it creates for all that the client wants to hear of.
func (v *view) create(l *link, missing []string) {
	err := v.question(l, missing, true)
	v.creating.Store(false)
	if err == nil {
		v.created.Store(true)
	} else if v.fail(err); l.alive() {
		v.doubt() // another node may be able to
	}
	v.wake()
}

// question asks for metadata, and takes the answer in.
func (v *view) question(l *link, topics []string, create bool) error {
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	v.mu.Lock()
	q := question{create, v.redirects}
	v.mu.Unlock()
	m := wire.MetadataRequest{Topics: topics, Create: create}
	p, err := l.ask(ctx, wire.TypeMetadata, wire.Append(nil, &m))
	if err != nil {
		return err
	}
	return v.learn(l, p, q)
}

// topic waits for what the cluster says about a topic that is wanted; create: after it was to be created.
func (v *view) topic(ctx context.Context, name string, create bool) (*topic, error) {
	for {
		known, final := v.state(name)
		if t := known.topics[name]; t != nil {
			switch m := meaning(t.status); {
			case m == verdictStored:
				return t, nil
			case m == verdictRefused && (final || !create):
				return nil, topicRefused(t.status, name)
			}
		}
		failed := v.failure()
		if errors.Is(failed, ErrUnauthorized) {
			return nil, failed
		}
		select {
		case <-known.changed:
		case <-v.client.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, because(because(ErrNoLeader, context.Cause(ctx)), failed)
		}
	}
}
