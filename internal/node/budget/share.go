package budget

import (
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"

	"penstock/internal/node/errs"
	"penstock/internal/node/names"
)

// Limits are those of the node's options that have the same names.
type Limits struct {
	MaxStateBytes int64 // most bytes of memory of the state of all channels
	MaxRanges     int   // most confirmed ranges of a channel in a partition
	TokenShare    int   // percent of a limit that the topics which one token has made may take; 100: all
}

// Budget has the limits of a node, and what all its partitions take. Package partition sets the limits before it uses
// it. Any goroutine may call its methods, except where they say otherwise.
type Budget struct {
	maxStateBytes, maxRanges, tokenShare atomic.Int64 // see Limits

	stored, memory atomic.Int64 // the sums of Account.stored and Account.memory
	shares         sync.Map     // *Share, by the token's name
}

// Limit sets the limits. What exceeds them stays, and nothing is added to it.
func (b *Budget) Limit(l Limits) {
	b.maxStateBytes.Store(l.MaxStateBytes)
	b.maxRanges.Store(int64(l.MaxRanges))
	b.tokenShare.Store(int64(l.TokenShare))
}

// StateMemory returns what the state of all channels costs in memory.
func (b *Budget) StateMemory() int64 { return b.memory.Load() }

// Recount computes the sums anew, which drops removed partitions from them. all yields the accounts of all partitions,
// after Account.Recount. Only the committer calls it.
func (b *Budget) Recount(all iter.Seq[*Account]) {
	b.Shares(func(sh *Share) { sh.nextBytes, sh.nextMemory = 0, 0 })
	var sum Share
	for a := range all {
		stored, memory := a.stored.Load(), a.memory.Load()
		sum.nextBytes, sum.nextMemory = sum.nextBytes+stored, sum.nextMemory+memory
		if sh := a.topic.Share.Load(); sh != nil {
			sh.nextBytes, sh.nextMemory = sh.nextBytes+stored, sh.nextMemory+memory
		}
	}
	b.stored.Store(sum.nextBytes)
	b.memory.Store(sum.nextMemory)
	b.Shares(func(sh *Share) {
		sh.stateBytes.Store(sh.nextBytes)
		sh.stateMemory.Store(sh.nextMemory)
	})
}

// Share counts what the topics take that one token has made, so that no token takes what others need: see
// Limits.TokenShare. Budget.Share makes it, and it stays as long as the budget. Package topic counts topics and
// partitions, and the accounts of partitions their state, as the budget does for all tokens. Any goroutine may read it.
// Nothing of it is stored: topic.json says who made a topic, and recovery counts again.
type Share struct {
	Name string // of the token

	Topics, Partitions atomic.Int64 // that the node lists; Topic.recount counts them

	stateBytes, stateMemory atomic.Int64
	nextBytes, nextMemory   int64 // only Budget.Recount uses them

	stored     atomic.Int64                    // bytes of the logs of its topics on this node
	overDisk   atomic.Pointer[errs.LimitError] // what messages to its topics are refused with; nil: they are stored
	nextStored int64                           // only Budget.DivideDisk uses it
}

// StoredBytes returns how many bytes the logs of the token's topics have on this node, as they were a moment ago.
func (sh *Share) StoredBytes() int64 { return sh.stored.Load() }

// StateBytes returns what the state of the token's topics costs in memory.
func (sh *Share) StateBytes() int64 { return sh.stateMemory.Load() }

// StoredState returns which part of the limit for a checkpoint of the node that state is.
func (sh *Share) StoredState() float64 { return float64(sh.stateBytes.Load()) / maxStoredBytes }

// Share returns the share of a token; nil: the empty name is that of nobody who has a share.
func (b *Budget) Share(name string) *Share {
	if name == "" {
		return nil
	}
	sh, ok := b.shares.Load(name)
	if !ok {
		sh, _ = b.shares.LoadOrStore(name, &Share{Name: name})
	}
	return sh.(*Share)
}

// Shares calls visit for each share.
func (b *Budget) Shares(visit func(*Share)) {
	b.shares.Range(func(_, sh any) bool {
		visit(sh.(*Share))
		return true
	})
}

// ofShare returns how much of most one token may take.
func (b *Budget) ofShare(most int64) int64 {
	percent := b.tokenShare.Load()
	return max(1, most/100*percent+most%100*percent/100)
}

// The last part of the disk, one in lastPart, is for the tokens that have stored no more than their share. Unlike the
// other limits, that of the disk is no share of each token: other tokens may never need the rest of the disk, and a
// queue that may use only half of it would refuse messages for nothing. What is stored goes with time, so that little
// has to be kept for others.
const lastPart = 10

// DivideDisk is flush.Env.Divide. What is free besides the reserve, and what is stored, is what messages may have. logs
// yields the share for which each partition counts, if any, and the bytes of its log. Only the flusher calls it.
func (b *Budget) DivideDisk(free, reserve int64, logs iter.Seq2[*Share, int64], log *slog.Logger) (soon bool) {
	shared := false
	b.Shares(func(sh *Share) { shared, sh.nextStored = true, 0 })
	if !shared || b.tokenShare.Load() >= 100 {
		return false
	}
	left := max(free-reserve, 0)
	room := left
	for sh, n := range logs {
		room += n
		if sh != nil {
			sh.nextStored += n
		}
	}
	b.Shares(func(sh *Share) {
		var over *errs.LimitError
		if most := b.ofShare(room); left < room/lastPart && sh.nextStored > most {
			over = &errs.LimitError{
				Err: errs.ErrStoredShare, What: "the number of stored bytes of the topics of " + names.Token(sh.Name),
				Value: sh.nextStored, Most: most, Setting: "token-share",
			}
		}
		if was := sh.overDisk.Swap(over); (was == nil) != (over == nil) {
			sh.logOverDisk(log, over)
		}
		sh.stored.Store(sh.nextStored)
	})
	return left < 2*room/lastPart
}

// logOverDisk says that messages to a token's topics are refused from now on, or (nil) that they are stored again.
func (sh *Share) logOverDisk(log *slog.Logger, over *errs.LimitError) {
	if over == nil {
		log.Info("messages are stored again in the topics that a token has made", "token", sh.Name)
		return
	}
	log.Warn("the disk is nearly full, and the topics that one token has made have more than its share: publishing to "+
		"them is refused, consuming goes on. It ends when their messages are finished", "token", sh.Name,
		"stored_bytes", over.Value, "share_bytes", over.Most, "setting", over.Setting)
}

// OverDisk returns why messages to the topic are refused, because the token that has made it has more than its share of
// a disk that is nearly full; nil: they are not.
func (a *Account) OverDisk() error {
	if sh := a.topic.Share.Load(); sh != nil {
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

// exceedsShare is Account.exceeds for the share of the token that has made the topic.
func (b *Budget) exceedsShare(sh *Share, more, memory int64) error {
	if sh == nil || b.tokenShare.Load() >= 100 {
		return nil
	}
	full := func(where string, value, most int64) error {
		return &errs.LimitError{
			Err: errs.ErrStateShare, What: "with this request the number of bytes for them in " + where + " of the topics of " +
				names.Token(sh.Name), Value: value, Most: most, Setting: "token-share",
		}
	}
	if inMemory, most := sh.stateMemory.Load()+memory, b.ofShare(b.maxStateBytes.Load()); inMemory > most {
		return full("the node's memory", inMemory, most)
	}
	if stored, most := sh.stateBytes.Load()+more, b.ofShare(maxStoredBytes); stored > most {
		return full("a checkpoint of the node", stored, most)
	}
	return nil
}
