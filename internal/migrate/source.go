package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrRunning says that an nsqd is using the directory, so that the files would change while they are read.
var ErrRunning = errors.New(
	"migrate: an nsqd uses the directory: stop it first, so that it writes what it holds in memory to its files")

// ErrNoData says that a directory has neither nsqd.dat nor files of a queue.
var ErrNoData = errors.New("migrate: the directory has no files of an nsqd")

// fingerprintBytes is how much of the beginning and of the end of each file goes into the fingerprint. It is enough for
// several message ids, which no two nsqds share.
const fingerprintBytes = 4096

// Source is the data directory of a stopped nsqd. Until Close it holds nsqd's own lock on the directory, so that no
// nsqd starts there. Its methods must be called from one goroutine.
type Source struct {
	Path     string // absolute
	Version  string // version of the nsqd that wrote nsqd.dat
	Topics   []Topic
	Unlisted []*Queue // files of topics and channels that are not in nsqd.dat
	Notes    []string
	Running  bool // an nsqd holds the lock; possible only with SourceOptions.Running

	root *os.Root
	dir  *os.File
}

// Topic is one topic of nsqd.dat with its files.
type Topic struct {
	Name     string
	Paused   bool
	Queue    *Queue // messages that no channel has yet; never nil
	Channels []Channel
}

// Channel is one channel of a Topic.
type Channel struct {
	Name   string
	Paused bool
	Queue  *Queue // never nil
}

// SourceOptions are the options of Open.
type SourceOptions struct {
	// Running allows opening the directory of an nsqd that is running. The files may then be read in an inconsistent
	// state, so this is for dry runs only.
	Running bool
	// Unlisted also imports the files of topics and channels that are not in nsqd.dat.
	Unlisted bool
}

// Open finds the files of an nsqd in dir. It fails with ErrRunning or ErrNoData, or if nsqd.dat cannot be read.
func Open(dir string, o SourceOptions) (*Source, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("migrate: nsqd's directory cannot be opened: %w", err)
	}
	s := &Source{Path: path, root: root}
	if err := s.open(o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Source) open(o SourceOptions) error {
	if err := s.lock(o.Running); err != nil {
		return err
	}
	queues, err := s.findQueues()
	if err != nil {
		return err
	}
	m, refused, found, err := readMetadata(s.root)
	switch {
	case err != nil:
		return err
	case !found && len(queues) == 0:
		return fmt.Errorf("%w: %s", ErrNoData, s.Path)
	case !found:
		s.Notes = append(s.Notes, metadataFile+" is missing: topics and channels are known only by their files")
		o.Unlisted = true
	}
	for _, name := range refused {
		s.Notes = append(s.Notes, fmt.Sprintf("%s has the name %.80q, which nsqd refuses: left out", metadataFile, name))
	}
	s.Version = m.Version
	if o.Unlisted {
		addUnlisted(&m, queues)
	}
	s.addTopics(&m, queues)
	return nil
}

// lock takes nsqd's lock, an flock on the directory. It takes the lock shared, so that several imports may read.
func (s *Source) lock(running bool) error {
	dir, err := os.Open(s.Path)
	if err != nil {
		return fmt.Errorf("migrate: nsqd's directory cannot be opened: %w", err)
	}
	s.dir = dir
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		s.Running = true
		if running {
			return nil
		}
		return fmt.Errorf("%w (%s)", ErrRunning, s.Path)
	}
	if err != nil {
		return fmt.Errorf("migrate: nsqd's lock on %s cannot be tried: %w", s.Path, err)
	}
	return nil
}

// Close releases nsqd's lock.
func (s *Source) Close() error {
	err := s.root.Close()
	if s.dir != nil {
		err = errors.Join(err, s.dir.Close())
	}
	return err
}

// findQueues groups the files in the directory by queue.
func (s *Source) findQueues() (map[string]*Queue, error) {
	entries, err := s.dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("migrate: nsqd's directory cannot be listed: %w", err)
	}
	queues := map[string]*Queue{}
	for _, entry := range entries {
		name, number, ok := splitFileName(entry.Name())
		if !ok || !entry.Type().IsRegular() {
			continue
		}
		topic, channel, isChannel := strings.Cut(name, ":")
		if !usableName(topic) || isChannel && !usableName(channel) {
			s.Notes = append(s.Notes, entry.Name()+" is not named like a file of nsqd's: left out")
			continue
		}
		q := queues[name]
		if q == nil {
			q = &Queue{Topic: topic, Channel: channel, name: name, root: s.root}
			queues[name] = q
		}
		switch number {
		case -1:
			q.meta = true
		case -2:
			q.bad = append(q.bad, entry.Name())
		default:
			q.files = append(q.files, number)
		}
	}
	for _, q := range queues {
		slices.Sort(q.files)
		slices.Sort(q.bad)
	}
	return queues, nil
}

func sortedQueues(queues map[string]*Queue) []*Queue {
	all := make([]*Queue, 0, len(queues))
	for _, q := range queues {
		all = append(all, q)
	}
	slices.SortFunc(all, func(a, b *Queue) int { return strings.Compare(a.name, b.name) })
	return all
}

// addUnlisted adds the topics and channels that have files but are not in m. It keeps m sorted, as parseMetadata made
// it.
func addUnlisted(m *metadata, queues map[string]*Queue) {
	for _, q := range sortedQueues(queues) {
		i, ok := slices.BinarySearchFunc(m.Topics, q.Topic, func(t topicMetadata, name string) int {
			return strings.Compare(t.Name, name)
		})
		if !ok {
			m.Topics = slices.Insert(m.Topics, i, topicMetadata{Name: q.Topic})
		}
		if q.Channel == "" {
			continue
		}
		t := &m.Topics[i]
		j, ok := slices.BinarySearchFunc(t.Channels, q.Channel, func(c channelMetadata, name string) int {
			return strings.Compare(c.Name, name)
		})
		if !ok {
			t.Channels = slices.Insert(t.Channels, j, channelMetadata{Name: q.Channel})
		}
	}
}

func (s *Source) addTopics(m *metadata, queues map[string]*Queue) {
	take := func(topic, channel string) *Queue {
		name := topic
		if channel != "" {
			name += ":" + channel
		}
		q := queues[name]
		if q == nil {
			return &Queue{Topic: topic, Channel: channel, name: name, root: s.root}
		}
		delete(queues, name)
		return q
	}
	for _, tm := range m.Topics {
		t := Topic{Name: tm.Name, Paused: tm.Paused, Queue: take(tm.Name, "")}
		for _, cm := range tm.Channels {
			t.Channels = append(t.Channels, Channel{Name: cm.Name, Paused: cm.Paused, Queue: take(tm.Name, cm.Name)})
		}
		s.Topics = append(s.Topics, t)
	}
	s.Unlisted = sortedQueues(queues)
}

// Queues returns all queues of the topics. A topic's own queue comes before those of its channels.
func (s *Source) Queues() []*Queue {
	var all []*Queue
	for i := range s.Topics {
		all = append(all, s.Topics[i].queues()...)
	}
	return all
}

func (t *Topic) queues() []*Queue {
	all := []*Queue{t.Queue}
	for i := range t.Channels {
		all = append(all, t.Channels[i].Queue)
	}
	return all
}

// Fingerprint identifies the contents of the directory. It changes when an nsqd has worked there, and is the same for a
// copy of the directory.
func (s *Source) Fingerprint() (string, error) {
	sum := sha256.New()
	add := func(name string) error {
		f, err := s.root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", name, st.Size())
		_, err = io.Copy(sum, io.NewSectionReader(f, 0, fingerprintBytes))
		if err == nil && st.Size() > fingerprintBytes {
			_, err = io.Copy(sum, io.NewSectionReader(f, max(fingerprintBytes, st.Size()-fingerprintBytes), fingerprintBytes))
		}
		return err
	}
	err := add(metadataFile)
	for _, q := range append(s.Queues(), s.Unlisted...) {
		err = errors.Join(err, add(q.metaName()))
		for _, n := range q.files {
			err = errors.Join(err, add(q.fileName(n)))
		}
	}
	if err != nil {
		return "", fmt.Errorf("migrate: nsqd's files cannot be read: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}
