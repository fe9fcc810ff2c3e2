package partition

import (
	"sync/atomic"

	"penstock/internal/node/errs"
	"penstock/internal/node/names"
)

// Share counts what the topics take that one token has made, so that no token takes what others need: see
// Options.TokenShare. Store.Share makes it, and it stays as long as the store. Package engine counts topics and
// partitions, and the committer the state of those partitions that this node has, as Store.stateBytes and
// Store.stateMemory do for all tokens. Any goroutine may read it. Nothing of it is stored: topic.json says who made a
// topic, and recovery counts again.
type Share struct {
	Name string // of the token

	Topics, Partitions atomic.Int64 // that the node lists; Topic.recount counts them

	stateBytes, stateMemory atomic.Int64
	nextBytes, nextMemory   int64 // only CheckpointBytes uses them

	stored     atomic.Int64                    // bytes of the logs of its topics on this node
	overDisk   atomic.Pointer[errs.LimitError] // what messages to its topics are refused with; nil: they are stored
	nextStored int64                           // only divideDisk uses it
}

// StoredBytes returns how many bytes the logs of the token's topics have on this node, as they were a moment ago.
func (sh *Share) StoredBytes() int64 { return sh.stored.Load() }

// StateBytes returns what the state of the token's topics costs in memory.
func (sh *Share) StateBytes() int64 { return sh.stateMemory.Load() }

// StoredState returns which part of the limit for a checkpoint of the node that state is.
func (sh *Share) StoredState() float64 { return float64(sh.stateBytes.Load()) / maxStoredStateBytes }

// Share returns the share of a token; nil: the empty name is that of nobody who has a share.
func (s *Store) Share(name string) *Share {
	if name == "" {
		return nil
	}
	sh, ok := s.shares.Load(name)
	if !ok {
		sh, _ = s.shares.LoadOrStore(name, &Share{Name: name})
	}
	return sh.(*Share)
}

// Shares calls visit for each share.
func (s *Store) Shares(visit func(*Share)) {
	s.shares.Range(func(_, sh any) bool {
		visit(sh.(*Share))
		return true
	})
}

// ofShare returns how much of most one token may take, at so many percent.
func ofShare(most, percent int64) int64 { return max(1, most/100*percent+most%100*percent/100) }

// SetShare makes the topic count for a token; nil: for nobody. Of its partitions' state, as much moves as they have
// now; the next checkpoint counts anew.
func (t *Topic) SetShare(sh *Share, parts []*Partition) {
	old := t.Share.Swap(sh)
	for _, pt := range parts {
		bytes, memory := pt.stateBytes.Load(), pt.stateMemory.Load()
		old.add(-bytes, -memory)
		sh.add(bytes, memory)
	}
}

// The last part of the disk, one in lastPart, is for the tokens that have stored no more than their share. Unlike the
// other limits, that of the disk is no share of each token: nobody else may ever want the rest of the disk, and a queue
// that may use only half of it would refuse messages for nothing. What is stored goes with time, so that little has to
// be kept for others.
const lastPart = 10

// divideDisk is flush.Env.Divide. What is free besides the reserve, and what is stored, is what messages may have.
func (s *Store) divideDisk(free, reserve int64) (soon bool) {
	shared := false
	s.Shares(func(sh *Share) { shared, sh.nextStored = true, 0 })
	percent := s.tokenShare.Load()
	if !shared || percent >= 100 {
		return false
	}
	left := max(free-reserve, 0)
	room := left
	for _, pt := range s.Partitions() {
		n := pt.log.Bytes()
		room += n
		if sh := pt.topic.Share.Load(); sh != nil {
			sh.nextStored += n
		}
	}
	s.Shares(func(sh *Share) {
		var over *errs.LimitError
		if most := ofShare(room, percent); left < room/lastPart && sh.nextStored > most {
			over = &errs.LimitError{
				Err: errs.ErrStoredShare, What: "the number of stored bytes of the topics of " + names.Token(sh.Name),
				Value: sh.nextStored, Most: most, Setting: "token-share",
			}
		}
		if was := sh.overDisk.Swap(over); (was == nil) != (over == nil) {
			s.logOverDisk(sh, over)
		}
		sh.stored.Store(sh.nextStored)
	})
	return left < 2*room/lastPart
}

// logOverDisk says that messages to a token's topics are refused from now on, or (nil) that they are stored again.
func (s *Store) logOverDisk(sh *Share, over *errs.LimitError) {
	if over == nil {
		s.log.Info("messages are stored again in the topics that a token has made", "token", sh.Name)
		return
	}
	s.log.Warn("the disk is nearly full, and the topics that one token has made have more than its share: publishing to "+
		"them is refused, consuming goes on. It ends when their messages are finished", "token", sh.Name,
		"stored_bytes", over.Value, "share_bytes", over.Most, "setting", over.Setting)
}

// exceedsDisk returns why messages to the topic are refused, because the token that has made it has more than its share
// of a disk that is nearly full; nil: they are not.
func (pt *Partition) exceedsDisk() error {
	if sh := pt.topic.Share.Load(); sh != nil {
		if over := sh.overDisk.Load(); over != nil {
			return over
		}
	}
	return nil
}

func (sh *Share) add(bytes, memory int64) {
	if sh != nil {
		sh.stateBytes.Add(bytes)
		sh.stateMemory.Add(memory)
	}
}

// addState corrects the sums of the node, and of the token that has made the topic.
func (pt *Partition) addState(bytes, memory int64) {
	pt.store.stateBytes.Add(bytes)
	pt.store.stateMemory.Add(memory)
	pt.topic.Share.Load().add(bytes, memory)
}

// exceedsShare is exceedsState for the share of the token that has made the topic.
func (pt *Partition) exceedsShare(more, memory int64) error {
	percent, sh := pt.store.tokenShare.Load(), pt.topic.Share.Load()
	if sh == nil || percent >= 100 {
		return nil
	}
	full := func(where string, value, most int64) error {
		return &errs.LimitError{
			Err: errs.ErrStateShare, What: "with this request the number of bytes for them in " + where + " of the topics of " +
				names.Token(sh.Name), Value: value, Most: most, Setting: "token-share",
		}
	}
	if inMemory, most := sh.stateMemory.Load()+memory, ofShare(pt.store.opts.MaxStateBytes, percent); inMemory > most {
		return full("the node's memory", inMemory, most)
	}
	if stored, most := sh.stateBytes.Load()+more, ofShare(maxStoredStateBytes, percent); stored > most {
		return full("a checkpoint of the node", stored, most)
	}
	return nil
}
