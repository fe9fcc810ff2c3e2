package partition

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/internal/node/message"
	"penstock/internal/node/replay"
	"penstock/internal/node/seal"
	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// A commit answers the puts of the batches below its mark. The batch at the mark is in the log and not committed: its
// publisher waits, and nobody reads it.
func TestCommitAnswersBelowTheMark(t *testing.T) {
	r := bareReplica()
	var answered []segment.MsgID
	for i := range segment.MsgID(4) {
		p := &inbox.Put{First: message.ID(i)}
		p.Done = func(*inbox.Put) { answered = append(answered, i) }
		b := &seal.Batch{Position: segment.Position(i), NextID: i + 1, Count: 1}
		b.Puts.Push(p)
		r.pending.Push(b)
	}
	for mark := range segment.Position(5) {
		r.run(func() { r.commit(mark) })
		if len(answered) != int(mark) || r.pt.visible.Load() != uint64(mark) || r.pending.Len() != 4-int(mark) {
			t.Fatalf("with %d batches committed %v are answered, what is below %d is visible, and %d wait",
				mark, answered, r.pt.visible.Load(), r.pending.Len())
		}
	}
}

// A report that batches of a log are durable says nothing about the log after a cut. That is also true if the copy
// takes no part in replication at that time.
func TestDurableOfAnotherGeneration(t *testing.T) {
	for _, role := range []role{roleIdle, roleClosed} {
		r := bareReplica()
		r.role, r.generation, r.durable = role, 2, 5
		r.run(func() { r.durableUpTo(7, 1) })
		if r.durable != 5 {
			t.Errorf("role %d: a batch of the log before the cut makes what is below %d durable", role, r.durable)
		}
		if r.run(func() { r.durableUpTo(7, 2) }); r.durable != 8 {
			t.Errorf("role %d: what is durable is forgotten: %d", role, r.durable)
		}
	}
}

// A copy moves away while its log is to be cut, and damage makes the cut impossible. The copy is given up, so that its
// bytes can be removed, or so that it can begin anew when it is needed again. A copy that was given up before in this
// process stays as it is until it moves away for good.
func TestCutOfAClosedCopyThatCannotBeMade(t *testing.T) {
	for _, again := range []bool{false, true} {
		r := bareReplica()
		r.node.Shortened = datadir.NewShortened(faultaio.New(faultaio.Options{Seed: 1}))
		r.role, r.cut, r.discardedBefore, r.discardedAt = roleClosed, &logCut{}, again, r.node.Now()
		r.discard(replay.ErrNoFold, r.cut)
		if r.cutInProgress() {
			t.Errorf("dropped before %v: the cut goes on for ever", again)
		}
		if r.discarded.Load() == again || r.IsTearingDown() != again || r.node.Shortened.Has(r.pt.Identity()) == again {
			t.Errorf("dropped before %v: given up %v, unsettled %v, shortened %v",
				again, r.discarded.Load(), r.IsTearingDown(), r.node.Shortened.Has(r.pt.Identity()))
		}
	}
}

// brokenReplica returns a follower whose log has a segment that cannot be repaired in place.
func brokenReplica(t *testing.T) (*Replica, runningStore) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	s := runStore(t, disk)
	s.publish(t, 400, 1000)
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Kill(1)
	name := datadir.PartitionPath(s.part.topic.ID, 0) + "/0000000000.seg"
	if !disk.Corrupt(name, []byte("rotten"), segment.SegmentHeaderBytes/2) {
		t.Fatal("nothing was damaged")
	}
	s = runStore(t, disk)
	r := bareReplica()
	r.pt = s.part
	r.node.store, r.node.Shortened = s.Store, datadir.NewShortened(disk)
	var cancel context.CancelFunc
	r.node.Ctx, cancel = context.WithCancel(context.Background())
	cancel() // there is no store that could be told
	r.follow(replicate.NewFollower(replicate.Config{}, r.node.member(), r.node.Self.Boot, replicate.Log{Generation: 1}))
	if !r.hasBroken() {
		t.Fatal("every segment can be repaired")
	}
	return r, s
}

// A goroutine that waited for a slow disk finds that it cannot cut or repair the copy, which has been given up
// meanwhile. The reset of the copy is under way, and needs nothing of the damaged range: it goes on.
func TestCopyThatBeginsAnewIsNotFailedByWhoCameBefore(t *testing.T) {
	for name, late := range map[string]func(r *Replica){
		"a cut":            func(r *Replica) { (&logCut{replica: r, to: 1, durable: make(chan error, 1)}).make() },
		"a cut of an end":  func(r *Replica) { r.cutFailed(&logCut{}, replay.ErrNoFold) },
		"a repair":         func(r *Replica) { (&rangeRepair{replica: r}).failed(r.brokenFile()) },
		"a cut long after": func(r *Replica) { r.discardedAt -= int64(dropPause); (&logCut{replica: r, to: 1}).make() },
		"a repair long after": func(r *Replica) {
			r.discardedAt -= int64(dropPause)
			(&rangeRepair{replica: r}).failed(r.brokenFile())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := brokenReplica(t)
			anew := &logCut{reset: true}
			r.cut, r.discardedBefore, r.discardedAt = anew, true, r.node.Now()
			r.discarded.Store(true)
			late(r)
			if r.cut != anew || anew.failed || r.discards != 0 {
				t.Errorf("the copy begins anew: %v, failed %v, given up %d times more", r.cut == anew, anew.failed, r.discards)
			}
			if err := r.follower.Err(); err != nil {
				t.Errorf("the copy does not follow any more: %v", err)
			}
		})
	}
}

// A copy is given up while its cut waits for the disk. Nothing of the cut is written, and its goroutine ends.
func TestCutOfACopyThatIsGivenUpMeanwhile(t *testing.T) {
	r, s := brokenReplica(t)
	c := &logCut{replica: r, durable: make(chan error, 1)} // to nothing: it has to read nothing
	r.discarded.Store(true)
	done := make(chan struct{})
	go func() { defer close(done); c.make() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the cut of a copy that was given up waits for its record")
		_ = s.end()
		<-done
	}
	if c.ready {
		t.Error("the cut of a copy that was given up is about to be written")
	}
}

// A copy whose log has a file that cannot be written any more is given up before it is cut. Otherwise the record of the
// cut, or the batches that are appended before it, would wait for room in a commit log that is full of the batches that
// this file did not take.
func TestCutOfACopyWithABrokenFile(t *testing.T) {
	for what, incoming := range map[string][]incomingBatch{"its record": nil, "what is to be appended": {{}}} {
		for _, reset := range []bool{false, true} {
			r, s := brokenReplica(t)
			c := &logCut{replica: r, reset: reset, durable: make(chan error, 1)} // to nothing: it has to read nothing
			r.cut, r.incoming = c, incoming
			done := make(chan struct{})
			go func() { defer close(done); c.make() }()
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Errorf("the cut of a copy with a broken file waits for %s, reset %v", what, reset)
				_ = s.end()
				<-done
			}
			if c.ready || !r.discarded.Load() {
				t.Errorf("the cut is about to be written: %v; the copy is given up: %v", c.ready, r.discarded.Load())
			}
		}
	}
}

// A copy that begins anew and is given up already keeps no files of the commit log, so what came before the cut is
// appended as soon as the log has room.
func TestCutOfACopyThatIsGivenUpWaitsForRoom(t *testing.T) {
	r, _ := brokenReplica(t)
	r.cut, r.incoming = &logCut{replica: r, reset: true}, []incomingBatch{{}}
	r.discarded.Store(true)
	done := make(chan error)
	go func() { done <- r.cut.awaitAppended() }()
	for range 3 {
		r.run(func() {})
	}
	select {
	case err := <-done:
		t.Fatal("it waits for nothing", err)
	case <-time.After(10 * time.Millisecond):
	}
	r.run(func() { r.incoming = nil })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A repair that fails gives the copy up, unless a cut cannot be stopped any more because its record is written.
func TestFailedRepairLeavesACutThatIsWritten(t *testing.T) {
	for _, stays := range []bool{false, true} {
		r, _ := brokenReplica(t)
		c := &logCut{stays: stays}
		r.cut = c
		if (&rangeRepair{replica: r}).failed(r.brokenFile()); r.discarded.Load() == stays || (r.cut == c) != stays {
			t.Errorf("its record is written: %v, the copy is given up: %v, it is cut: %v", stays, r.discarded.Load(), r.cut == c)
		}
	}
}

// A copy is closed while its log is to be cut, and drops batches that were on their way to the log. The record of the
// cut then has no epochs that begin behind the end of the log. With such epochs the copy would report that its log ends
// there, and would refuse the older epochs that its next leader sends.
func TestCutOfAClosedCopyForgetsWhatNeverCame(t *testing.T) {
	for end, epochs := range map[segment.Position]int{0: 0, 3: 1, 4: 1, 5: 2, 10: 3, 20: 3} {
		r := bareReplica()
		r.role, r.pt.machine = roleClosed, machine.NewPartition(segment.State{Next: end}, segment.Sizes{})
		c := &logCut{replica: r, to: 11, epochs: []replicate.EpochStart{
			{Epoch: 1},
			{Epoch: 3, Position: 4, Offset: 400},
			{Epoch: 7, Position: 9, Offset: 900},
		}}
		if c.clampToLog(); c.to != min(11, end) || len(c.epochs) != epochs {
			t.Errorf("a log that ends at %d is cut to %d, with the epochs %v", end, c.to, c.epochs)
		}
	}
}

// A copy that is given up may be the last one that has some acknowledged batches. So the commit log keeps the batches
// of this copy until a leader has heard where the log of the copy ends and needs nothing of it, or until the record of
// the copy's reset waits for room.
func TestGivenUpCopyIsKeptUntilItIsNotNeeded(t *testing.T) {
	var acts replicate.Actions
	for _, c := range []struct {
		name string
		then func(r *Replica)
		free bool
	}{
		{"no leader", func(*Replica) {}, false},
		{"a leader that compares has heard of it", func(r *Replica) {
			r.follower.Step(0, &replicate.Event{Kind: replicate.EvMessage, Node: 2, Message: &replicate.Message{
				Kind: replicate.MsgProbe, Epoch: 2, Request: 1,
			}}, &acts)
		}, false},
		{"a leader needs nothing of it", func(r *Replica) {
			r.follower.Step(0, &replicate.Event{Kind: replicate.EvMessage, Node: 2, Message: &replicate.Message{
				Kind: replicate.MsgProbe, Epoch: 2, Request: 1,
			}}, &acts)
			report := acts.List[len(acts.List)-1].Message
			r.follower.Step(0, &replicate.Event{Kind: replicate.EvMessage, Node: 2, Message: &replicate.Message{
				Kind: replicate.MsgMatch, Epoch: 2, Request: 1, Position: 3, Boot: report.Boot, Generation: report.Generation,
			}}, &acts)
		}, true},
		{"it is closed", func(r *Replica) { r.role, r.follower = roleClosed, nil }, false},
		{"it begins anew", func(r *Replica) { r.role, r.follower, r.cut = roleClosed, nil, &logCut{reset: true} }, true},
		{"it is cut", func(r *Replica) { r.cut = &logCut{} }, false},
		{"it is removed", func(r *Replica) { r.role, r.follower, r.removing = roleClosed, nil, true }, true},
		{"it is removed and not given up", func(r *Replica) {
			r.discarded.Store(false)
			r.role, r.follower, r.removing = roleClosed, nil, true
		}, true},
		{"an earlier process let go of it", func(r *Replica) {
			_ = r.node.Shortened.SetDiscarded(r.pt.Identity(), true)
		}, true},
	} {
		r := bareReplica()
		r.node.Shortened = datadir.NewShortened(faultaio.New(faultaio.Options{Seed: 1}))
		r.follow(replicate.NewFollower(replicate.Config{}, r.node.member(), r.node.Self.Boot, replicate.Log{
			End: segment.State{Next: 5, NextID: 5, End: 500, Epoch: 1}, Durable: 5, Committed: 1, Epoch: 1, Generation: 1,
			Epochs: []replicate.EpochStart{{Epoch: 1}},
		}))
		r.discarded.Store(true)
		r.follower.Step(0, &replicate.Event{Kind: replicate.EvUnusable}, &acts)
		if c.then(r); r.mayReleaseFiles() != c.free || r.node.Shortened.IsDiscarded(r.pt.Identity()) != c.free {
			t.Errorf("%s: the commit log lets go of it: %v", c.name, !c.free)
		}
	}
}

// A copy that does not read back, or that has entries which this version does not know, does not lead although the
// store says so: the report of the damage may have crossed the election.
//
// F3, F4.
func TestDamagedCopyDoesNotLead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *Replica)
		leads  bool
	}{
		{"whole", func(*Replica) {}, true},
		{"damaged", func(r *Replica) {
			r.follower.Step(0, &replicate.Event{Kind: replicate.EvCorrupt, Position: 1, Until: 2}, &r.acts)
		}, false},
		{"its disk failed", func(r *Replica) {
			r.follower.Step(0, &replicate.Event{Kind: replicate.EvFault, Err: errors.New("EIO")}, &r.acts)
		}, false},
		{"unread", func(r *Replica) { r.pt.setUnread(replay.ErrFoldNotStored) }, false},
		{"another disk", func(r *Replica) { r.state.ISR[0].Store = uuid.UUID{3} }, false},
		{"of the process before", func(r *Replica) { r.state.Boot = uuid.UUID{8} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := bareReplica()
			r.state = replicate.State{
				Epoch: 2, Version: 7, Leader: 1, Boot: r.node.Self.Boot, MinISR: 1,
				Replicas: []replicate.NodeID{1}, ISR: []replicate.Member{r.node.member()},
			}
			r.generation = 1
			r.follow(replicate.NewFollower(replicate.Config{}, r.node.member(), r.node.Self.Boot, replicate.Log{
				End: segment.State{Next: 5, NextID: 5, End: 500, Epoch: 1}, Durable: 5, Committed: 5, Epoch: 1, Generation: 1,
				Epochs: []replicate.EpochStart{{Epoch: 1}},
			}))
			c.change(r)
			r.mu.Lock()
			r.changeRole()
			r.mu.Unlock()
			if leads := r.leader != nil; leads != c.leads || r.pt.Leading.Load() != c.leads {
				t.Errorf("leads %v, takes puts %v, want %v", leads, r.pt.Leading.Load(), c.leads)
			}
		})
	}
}

// The machine knows all damage that recovery found before anybody can ask it to lead: segments that do not read back,
// and a commit log that failed.
//
// F4.
func TestDamageIsKnownAtTheStart(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	s := runStore(t, disk)
	s.publish(t, 400, 1000)
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	electable := func(s runningStore) bool {
		r := bareReplica()
		r.node.store, r.node.Shortened, r.pt = s.Store, datadir.NewShortened(disk), s.part
		var cancel context.CancelFunc
		r.node.Ctx, cancel = context.WithCancel(context.Background())
		cancel() // there is no store that could be told
		if err := r.open(r.pt.machine.State().Next); err != nil {
			t.Fatal(err)
		}
		return r.follower.Electable()
	}
	disk = disk.Kill(1)
	s = runStore(t, disk)
	if !electable(s) {
		t.Fatal("a whole copy cannot lead")
	}
	failed := error(machine.ErrPoisoned)
	if s.poisoned.Store(&failed); electable(s) {
		t.Error("a copy whose commit log failed could be made leader")
	}
	if err := s.end(); err != nil && !errors.Is(err, machine.ErrPoisoned) {
		t.Fatal(err)
	}
	disk = disk.Kill(1)
	name := datadir.PartitionPath(s.part.topic.ID, 0) + "/0000000000.seg"
	if !disk.Corrupt(name, []byte("rotten"), segment.SegmentHeaderBytes+segment.HeaderBytes) {
		t.Fatal("nothing was damaged")
	}
	s = runStore(t, disk)
	c := segment.NewChecker()
	defer c.Close()
	if _, err := s.part.log.Check(c, 0, 1, 0); !errors.As(err, new(*segment.CorruptError)) {
		t.Fatal("the damage was not found", err)
	}
	if electable(s) {
		t.Error("a damaged copy could be made leader")
	}
}
