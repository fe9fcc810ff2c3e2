package catalog

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/internal/node/scrub"
	"penstock/internal/node/topic"
	"penstock/segment/aio"
)

// Env is what a Catalog gets from its node.
type Env struct {
	Host   platform.Host
	Log    *slog.Logger
	Clock  *clock.Clock
	Disk   aio.Disk
	Store  *partition.Store
	News   *platform.Notice // raised when a topic is listed or unlisted
	Listed func() int64     // the partitions of all listed topics
	Limits func() Limits    // as they are now
}

// Catalog has the topics of a node. Any goroutine may call its methods.
//
// mu guards everything below it, and is held for a few instructions, also while partitions are added to the list of the
// store: so Close misses none. files is held while a topic.json is written or repaired, which waits for the disk; mu is
// taken inside it. After a crash, recovery lists the topics of the data directory again.
type Catalog struct {
	env Env

	files lock.Mutex[lock.CatalogFiles]

	mu       lock.RWMutex[lock.Catalog]
	topics   map[string]*topic.Topic
	noted    map[uuid.UUID]*datadir.Topic // see Note; nil: no backup is before its moment
	deleted  fanout.DeletedNames          // names of topics that were deleted a moment ago
	closed   bool
	creating map[string]*creation
	growing  map[*topic.Topic]int // how many partitions topics are about to have
}

// creation is a topic that one caller is creating. Other callers that want the same topic wait for done. err is set
// before done is closed.
type creation struct {
	partitions int
	madeBy     string // the token for which the topic counts; "": none
	done       chan struct{}
	err        error
}

// New returns a catalog without topics.
func New(e Env) *Catalog {
	return &Catalog{
		env: e, topics: map[string]*topic.Topic{}, creating: map[string]*creation{}, growing: map[*topic.Topic]int{},
	}
}

// Topics returns all topics, sorted by name. The slice belongs to the caller.
func (c *Catalog) Topics() []*topic.Topic {
	c.mu.RLock()
	all := slices.AppendSeq(make([]*topic.Topic, 0, len(c.topics)), maps.Values(c.topics))
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b *topic.Topic) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// LookupTopic returns the topic of that name if it exists on this node. It creates nothing.
func (c *Catalog) LookupTopic(name string) (*topic.Topic, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	t, ok := c.topics[name]
	return t, ok
}

// LookupTopicID returns the topic with this identity if it exists on this node. It looks through all topics, so callers
// keep the result. Of a topic that was deleted since, all methods return ErrDeleted.
func (c *Catalog) LookupTopicID(id uuid.UUID) (*topic.Topic, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, t := range c.topics {
		if t.ID() == id {
			return t, true
		}
	}
	return nil, false
}

// Make returns the topic of that name. If there is none, it calls create, which makes the topic with so many partitions
// and lists it. One caller at a time does so for a name; others wait for it, at most until ctx ends. The topic counts
// for the token madeBy; "": for nobody.
func (c *Catalog) Make(
	ctx context.Context, name, madeBy string, partitions int, create func() (*topic.Topic, error),
) (*topic.Topic, error) {
	for {
		t, cr, mine, err := c.begin(name, madeBy, partitions)
		if t != nil || err != nil {
			return t, err
		}
		if mine {
			t, cr.err = create()
			c.mu.Lock()
			delete(c.creating, name)
			c.mu.Unlock()
			close(cr.done)
			return t, cr.err
		}
		if !c.env.Host.Either(cr.done, ctx.Done()) {
			return nil, ctx.Err()
		}
		if cr.err != nil {
			return nil, cr.err
		}
	}
}

// begin returns the topic of that name, or the creation of it that is under way, or a new one, which is the caller's.
func (c *Catalog) begin(name, madeBy string, partitions int) (t *topic.Topic, cr *creation, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t = c.topics[name]; t != nil {
		return t, nil, false, nil
	}
	if c.closed {
		return nil, nil, false, errs.ErrClosed
	}
	if cr = c.creating[name]; cr != nil {
		return nil, cr, false, nil
	}
	if err := c.mayMake(madeBy, 1, partitions); err != nil {
		return nil, nil, false, err
	}
	cr = &creation{partitions: partitions, madeBy: madeBy, done: make(chan struct{})}
	c.creating[name] = cr
	return nil, cr, true, nil
}

// List makes t the topic of its name, in place of any other one, and lists these partitions of it in the store. It
// returns ErrClosed, and does nothing, if the catalog is closed.
func (c *Catalog) List(t *topic.Topic, parts []*partition.Partition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errs.ErrClosed
	}
	if old := c.topics[t.Name()]; old != nil && old != t {
		old.SetListed(false)
	}
	c.topics[t.Name()] = t
	t.SetListed(true)
	if c.noted != nil {
		c.noted[t.ID()] = t.File()
	}
	if len(parts) > 0 {
		c.env.Store.Add(parts)
	}
	c.env.News.Raise()
	return nil
}

// Unlist removes t from the list of topics, unless its name refers to another topic by now.
func (c *Catalog) Unlist(t *topic.Topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.topics[t.Name()] == t {
		delete(c.topics, t.Name())
		c.env.News.Raise()
		t.SetListed(false)
	}
}

// AddCopies adds new partitions of a listed topic to those of the store, and refuses their puts if nothing is stored
// any more. It returns ErrClosed if the catalog is closed.
func (c *Catalog) AddCopies(parts []*partition.Partition) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errs.ErrClosed
	}
	c.env.Store.Add(parts)
	c.mu.Unlock()
	c.env.Store.RefuseIfFailed(parts)
	return nil
}

// Locked calls change while nobody else counts, lists or closes. change must not wait, or call the catalog.
func (c *Catalog) Locked(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// WhileOpen calls f, or returns ErrClosed if the catalog is closed. Close waits for f, which must not wait.
func (c *Catalog) WhileOpen(f func()) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return errs.ErrClosed
	}
	f()
	return nil
}

// Closed says whether Close was called.
func (c *Catalog) Closed() bool { return c.WhileOpen(func() {}) != nil }

// Close closes the catalog: nothing is listed any more. It returns false if that was done before.
func (c *Catalog) Close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.closed
	c.closed = true
	return !was
}

// Missing returns the ErrNoTopic for a name, as a GoneError if the topic was deleted a moment ago.
func (c *Catalog) Missing(name string) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.deleted.Missing(name, c.now(), errs.ErrNoTopic)
}

// NoteDeleted makes Missing return a GoneError for this name for a while.
func (c *Catalog) NoteDeleted(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted.Add(name, c.now())
}

// BeginDelete returns a topic that is about to be deleted, and notes that. It returns Missing's error if there is none,
// or if its deletion is under way, and ErrClosed if the catalog is closed.
func (c *Catalog) BeginDelete(name string) (*topic.Topic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.topics[name]
	switch {
	case c.closed:
		return nil, errs.ErrClosed
	case !ok || t.OfPartitions().Deleted.Load():
		return nil, c.deleted.Missing(name, c.now(), errs.ErrNoTopic)
	}
	c.deleted.Add(name, c.now())
	return t, nil
}

func (c *Catalog) now() time.Time { return time.Unix(0, c.env.Clock.NowNs()) }

// Delete deletes this node's copies (parts) of a topic; there is at least one. It waits for the tombstone to be
// durable.
func (c *Catalog) Delete(t *topic.Topic, parts []*partition.Partition) error {
	return t.Local().Delete(parts, func(release func()) {
		c.Unlist(t)
		c.Trash(t, parts, release)
	})
}

// Trash moves the files of a deleted topic to the trash. Until they are there, the tombstone must stay in the commit
// log, or the next Open would find the topic again. So Trash calls release, which frees the commit log files from the
// tombstone on, only afterwards.
func (c *Catalog) Trash(t *topic.Topic, parts []*partition.Partition, release func()) {
	var err error
	for _, pt := range parts {
		err = errors.Join(err, pt.CloseLog())
	}
	if err != nil {
		c.env.Log.Warn("closing a deleted topic's files", "topic", t.Name(), "error", err)
	}
	c.TrashFiles(t.ID(), t.Name(), release)
}

// TrashFiles moves the files of a deleted topic to the trash, and calls release when they are durably there. If moving
// them fails, the flusher tries again and then calls release.
func (c *Catalog) TrashFiles(id uuid.UUID, name string, release func()) {
	if err := datadir.TrashTopic(c.env.Disk, id); err != nil {
		if !c.Closed() { // if the engine is closed, the next Open moves the files
			c.env.Log.Warn("a deleted topic's files could not be moved away; it is tried again", "topic", name, "error", err)
		}
		c.env.Store.Flusher().TrashLater(id, release)
		return
	}
	release()
	c.env.Store.Flusher().WakeUp()
}

// WriteFile writes a topic's directory and topic.json durably. It must return before any put of the topic is answered.
// It keeps m.
func (c *Catalog) WriteFile(m *datadir.Topic) error {
	c.env.Host.Lock(&c.files)
	defer c.files.Unlock()
	if err := m.Write(c.env.Disk); err != nil {
		return err
	}
	c.mu.Lock()
	if c.noted[m.ID] != nil {
		c.noted[m.ID] = m
	}
	c.mu.Unlock()
	return nil
}

// Files returns the topic.json files, for the scrub.
func (c *Catalog) Files() []scrub.TopicFile {
	var all []scrub.TopicFile
	for _, t := range c.Topics() {
		all = append(all, func(check func(*datadir.Topic)) { c.withFile(t, check) })
	}
	return all
}

// withFile implements scrub.TopicFile. It calls check with the content that topic.json should have, and keeps
// topic.json from being replaced meanwhile. It does not call check for a deleted topic.
func (c *Catalog) withFile(t *topic.Topic, check func(*datadir.Topic)) {
	c.env.Host.Lock(&c.files)
	defer c.files.Unlock()
	if !t.OfPartitions().Deleted.Load() {
		check(t.File())
	}
}

// Note notes what each topic.json has. From now on until Noted, List adds the topics that appear, and WriteFile what it
// changes: a topic that is created meanwhile has records in the commit log, even if it is deleted again at once, and a
// restart understands them only with its topic.json. A topic that was deleted before the moment has its tombstone in
// the commit log, whether its topic.json is in the backup or not.
func (c *Catalog) Note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noted = make(map[uuid.UUID]*datadir.Topic, len(c.topics))
	for _, t := range c.topics {
		c.noted[t.ID()] = t.File()
	}
}

// Noted ends what Note began, at the moment of the backup, and returns what was noted.
func (c *Catalog) Noted() map[uuid.UUID]*datadir.Topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	noted := c.noted
	c.noted = nil
	return noted
}
