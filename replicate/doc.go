// Package replicate decides how one partition is replicated: who gets which batch, when a write is committed, who is in
// the ISR, what a replica that comes back has to cut. It decides and does nothing else. [Leader] and [Follower] take
// events and return actions; they know no disk, socket, clock, goroutine or map, so every history can be replayed from
// a text (testdata) or from a seed (the simulation in the tests). The engine feeds them and does what they say.
//
// # Use
//
// A replica is a Leader or a Follower, never both. Whoever owns it (part.Replica, with its lock held) steps it:
//
//	l := replicate.NewLeader(cfg, self, boot, log, state, now)
//	var acts replicate.Actions // used again by every Step
//	feed := []replicate.Event{{Kind: replicate.EvTick, Live: live}}
//	for len(feed) > 0 {
//		l.Step(now, &feed[0], &acts)
//		feed = feed[1:]
//		for i := range acts.List {
//			feed = append(feed, do(&acts.List[i])...) // appends, sends, cuts; what it leads to at once
//		}
//	}
//
// What an action leads to later, as a durable write or an answer, is an event of its own. After ActStepDown the Leader
// is over, and its owner makes a Follower from Log(). What the owner must keep besides is at the end of this page.
//
// # Marks
//
// All of them are half-open: everything below is held. Positions number batches.
//
//	on each replica     Committed <= Durable <= End
//	on a follower       Committed <= the leader's Committed
//	on the leader       Committed <= Durable of every member of the ISR, itself included
//	per follower        Match <= Next <= Match + MaxWindowCount, and Match <= its Durable
//	per batch           batch k+1 begins where batch k ends, in position, id and offset, and names its checksum
//
// None moves back but Match and Durable of a follower that lost something: it has another disk, begins anew, or reports
// less than it acknowledged. Its leader then counts from Match 0. If it still is a member, it is proposed for removal
// until it holds Committed again (Progress.lost), or the ISR cannot shrink and waits for it.
//
// Committed moves only if the ISR has MinISR members, the lease lives, and the ISR holds the batch that began this
// epoch ([Quorum]).
//
// The ISR that counts is the largest one that the store could show to an election: the accepted one, with everybody who
// is in a proposal that may yet be accepted. So whoever can be elected holds everything that is committed. That
// sentence is what the simulation checks after every event.
//
// # Steps of a write
//
//  1. EvPut: may a batch be appended now? ActRefuse says why not; the engine keeps the write until its deadline.
//  2. The engine seals a batch and says EvAppended. In the same Step it goes to every follower in step; the engine's
//     own disk works beside them, from the same bytes.
//  3. The follower checks the frame's arguments, the epoch, whether it has the batch, whether it continues the log;
//     ActAppend.
//  4. EvDurable there: a cumulative ack, in this epoch and exchange. EvDurable here counts the same.
//  5. The smallest mark of the ISR passes the batch: ActCommit. Followers hear of it with the next frame or heartbeat.
//
// # Steps of an exchange
//
// A new leader, a lost ack, a restarted process, a log that does not fit: both sides go through the same four messages,
// numbered by the leader (Request) so that a late one is known as such.
//
//  1. Probe: what do you have? The follower's log stands still from here on.
//  2. Report: its end, its leader-epoch table, its process, its disk and the generation of its log.
//  3. Match: our logs are equal below P. Or Reset: begin anew where my log begins.
//  4. The follower cuts, and acknowledges what is durable below P. From here on its end is the leader's log.
//
// One exchange is enough however often the leader changed, because whole tables are compared and a batch is identified
// by (epoch, position): one epoch is one incarnation of one leader, never continued by a restarted process.
//
// # Races
//
// A late answer must not cut what was appended since (P5):
//
//	leader                                follower
//	1 Match r1 at 10, sent twice
//	                                      2 follows from 10 on
//	3 appends 10..20
//	                                      4 20 durable, acknowledged, committed
//	                                      5 the second Match r1: not reporting, ignored
//
// A follower that is being added may be elected before the leader hears that it was added (P6):
//
//	leader                                store
//	1 proposes {A B C}; C counts from now on
//	                                      2 accepts; C can be elected
//	3 Committed waits for C
//	                                      4 A is gone, C leads: it has everything
//	5 the answer of step 2 arrives, or never
//
// A new leader does not know all that is committed, so its Committed is no measure for who may join (P4, KAFKA-7128):
//
//	new leader B, Committed 5 of 9        returning C
//	1 its log and the ISR's reach 9
//	                                      2 caught up to 6, beyond B's Committed
//	3 not proposed: 6 < end of B's log at its election
//	                                      4 holds the epoch-start batch at 9: proposed
//
// A disk that hangs leaves its process able to answer everything but an ack, so a heartbeat says nothing about who may
// join:
//
//	leader                                follower whose disk hangs
//	1 behind for LagMaxNs: proposed for removal, stuck at its Match
//	2 removed: what the others hold is committed, first
//	                                      3 answers heartbeats with the Match of step 1
//	4 holds less than Committed, or as much, and stays out
//	                                      5 its disk goes on, its Match passes that of step 1
//	6 may join; at most MaxISRJoins do per ISRWindowNs
//
// A stopped leader goes on (P7): its followers have heard of a newer epoch and say so; those who have not can give it
// their acks, but not all of them can, since the new leader came from the ISR and takes no orders from it.
//
// # Rejected alternatives
//
// Majorities instead of an ISR (Raft): three replicas would survive one loss as here, but a commit would wait for the
// faster follower only, and after the loss of one node a second copy would not be guaranteed to be complete. The ISR
// costs a round trip to the store when a follower fails, which is what LagMaxNs bounds.
//
// Truncation to the known Committed on restart (KIP-101): it cuts what others count on. The mark is not a place to cut
// to, only a place never to cut below.
//
// One epoch per message of the comparison, repeated until both agree (KIP-279): more round trips, and every one is a
// place for a late answer.
//
// Waiting without limit for a follower to catch up with a moving Committed before it is proposed: under a steady load
// it never does. Pausing writes for it, as the original does: a pause. Instead it holds Committed back like a member
// for at most JoinNs.
//
// Shrinking the ISR below MinISR: it would commit nothing more, and leave fewer replicas to elect.
//
// Safety from the lease: clocks jump. The lease stops a cut-off leader from answering and delivering; what is committed
// is safe without it, and the simulation runs with leases that never end.
//
// # Where the promises of the original live
//
//	youzan/nsq                                     here
//	PutMessageToCluster, PutMessagesToCluster,     EvPut, EvAppended, EvDurable, ActCommit: no lock, no call across I/O
//	doSyncOpToCluster
//	handleSyncResult (all of the ISR, majority)    Quorum: smallest durable mark of the ISR, len(ISR) >= MinISR
//	doLocalRollback                                nothing to undo: what is above Committed is not visible;
//	                                               after a change of leader ActTruncate
//	doRefresh, ErrEpochMismatch                    Epoch in every message; RejectEpoch, ActRefresh, ErrFenced
//	putMessageOnSlave, putMessagesOnSlave,         Follower.append: arguments, duplicates, place, chain; a cumulative ack
//	doWriteOpOnSlave
//	checkDupOnSlave, IsCommitted                   Follower.skipKnown: by (epoch, position, checksum),
//	                                               over the whole window
//	AppendCommitLog, UpdateCommittedOffset         ActAppend is the write itself; MsgAppend and MsgHeartbeat
//	                                               carry Committed
//	LastMsgLogID for the next id                   Log.End: ids are dense and come from the log
//	FinishMessageToCluster                         a control batch; ordered channels wait for its ActCommit
//	updateChannelOffsetOnSlave                     the same: it cannot arrive before its data
//	catchup by the follower, write paused to join     CatchUp by ranges, MsgReset for a full sync, no pause to join
//	delete from ISR after a failed write           Leader.propose after LagMaxNs, or at once when the process
//	                                               or the disk is gone
//
// # What the engine must keep
//
//   - One owner per machine, events in the order in which they happened, actions done in order; a second event that an
//     action leads to is fed in after all actions of the first.
//   - ActSend may be lost: everything is repeated. A connection that is lost needs no event; a process that is gone
//     should bring EvPeerDown.
//   - ActSend never waits for the disk: what memory does not have is EvEvicted, and read as ActRead, which may take as
//     long as it likes. An ActRead for the same node and purpose replaces one that has not begun.
//   - EvDurable carries the generation that the log had when the sync was asked for.
//   - A reset is on stable storage before EvTruncated; a cut only has to come before later appends in the commit log.
//   - What is recovered after a crash is synced before NewFollower counts it as Durable.
//   - The log that follows a Leader contains all that was appended, also what the machine was not told of any more.
//   - A log that recovery shortened says so (Log.Shortened), in later processes too, until its machine says that it is
//     whole (Shortened).
//   - A new machine begins without damage: the engine tells it again of what does not read back.
//   - The store grants an epoch once, to one process; elects only from the ISR and only who is Electable; lets no
//     member be added under a disk that its node does not have.
package replicate
