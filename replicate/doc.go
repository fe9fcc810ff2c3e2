// Package replicate decides how one partition is replicated: which batches go to which replica, when a write is
// committed, who is in the ISR, and what a returning replica has to cut. It decides and does nothing else. [Leader] and
// [Follower] take events and return actions. They know no disk, socket, clock, goroutine or map, so every history can
// be replayed from a text (testdata) or from a seed (the simulation in the tests). The engine feeds in the events and
// carries out the actions.
//
// # Use
//
// A replica is a Leader or a Follower, never both. Its owner (partition.Replica, with its lock held) steps it:
//
//	l := replicate.NewLeader(cfg, self, boot, log, state, now)
//	var acts replicate.Actions // reused by every Step
//	feed := []replicate.Event{{Kind: replicate.EvTick, Live: live}}
//	for len(feed) > 0 {
//		l.Step(now, &feed[0], &acts)
//		feed = feed[1:]
//		for i := range acts.List {
//			feed = append(feed, do(&acts.List[i])...) // append, send, cut; do returns events that follow at once
//		}
//	}
//
// Results that come later, such as a durable write or an answer from a peer, are events of their own. After ActStepDown
// the Leader is finished, and its owner makes a Follower from Log(). The owner's other duties are listed at the end of
// this page.
//
// # Marks
//
// All marks are half-open: a replica holds everything below its mark. Positions number batches.
//
//	on each replica     Committed <= Durable <= End
//	on a follower       Committed <= the leader's Committed
//	on the leader       Committed <= Durable of every member of the ISR, itself included
//	per follower        Match <= Next <= Match + MaxWindowCount, and Match <= its Durable
//	per batch           batch k+1 begins where batch k ends, in position, id and offset, and names its checksum
//
// No mark moves back, except Match and Durable of a follower that lost data: it has another disk, begins anew, or
// reports less than it had acknowledged. Its leader then counts it from Match 0. If that follower is still a member of
// the ISR, the leader proposes to remove it until it holds Committed again (Progress.lost). If the ISR cannot shrink,
// the commit waits for that follower.
//
// Committed moves only if the ISR has MinISR members, the lease is valid, and every member of the ISR holds the batch
// that began this epoch ([Quorum]).
//
// The leader counts the largest ISR that an election could find in the store: the accepted ISR plus every member of a
// proposal that may yet be accepted. So every replica that can be elected holds everything that is committed. The
// simulation checks this invariant after every event.
//
// # Steps of a write
//
//  1. EvPut: may a batch be appended now? ActRefuse says why not; the engine keeps the write until its deadline.
//  2. The engine seals batches and says EvAppended, once for those that it seals together. The same Step sends them to
//     every follower in step, together; the local disk writes the same bytes in parallel.
//  3. The follower checks the frame's arguments, its epoch, whether the batch is a duplicate, and whether it continues
//     the log; then ActAppend.
//  4. EvDurable at the follower becomes a cumulative ack of this epoch and exchange. EvDurable at the leader counts
//     like an ack.
//  5. The smallest mark of the ISR passes the batch: ActCommit. The next frame or heartbeat tells the followers.
//
// # Steps of an exchange
//
// A new leader, a lost ack, a restarted process and a log that does not fit are all handled by the same four messages.
// The leader numbers each exchange (Request), so that a late message is recognised.
//
//  1. Probe: what do you have? From here on the follower's log does not change.
//  2. Report: the end of the follower's log, its leader-epoch table, its process, its disk and the generation of its
//     log.
//  3. Match: our logs are equal below P. Or Reset: begin anew where my log begins.
//  4. The follower cuts its log to P and acknowledges what is durable below P. From here on its log is a prefix of the
//     leader's.
//
// One exchange is enough however often the leader changed, because whole tables are compared and (epoch, position)
// identifies a batch: one epoch is one incarnation of one leader, and a restarted process never continues it.
//
// # Races
//
// A late answer must not cut what the follower has appended since (P5):
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
// A new leader may not know everything that is committed, so its Committed does not decide who may join (P4,
// KAFKA-7128):
//
//	new leader B, Committed 5 of 9        returning C
//	1 its log and the ISR's reach 9
//	                                      2 caught up to 6, beyond B's Committed
//	3 not proposed: 6 < end of B's log at its election
//	                                      4 holds the epoch-start batch at 9: proposed
//
// A process whose disk hangs can still answer everything, only not with acks of new batches. So a heartbeat's answer
// does not show that a follower may join:
//
//	leader                                follower whose disk hangs
//	1 behind for LagMaxNs: proposed for removal, stuck at its Match
//	2 removed: now the others' batches can be committed
//	                                      3 answers heartbeats with the Match of step 1
//	4 keeps it out, even if that Match equals Committed
//	                                      5 its disk works again, its Match passes that of step 1
//	6 may join; at most MaxISRJoins replicas join per ISRWindowNs
//
// A leader that was paused resumes (P7). Followers that know a newer epoch reject its messages. The others may still
// acknowledge its batches, but never all of them do: the new leader came from the ISR and takes no orders from the old
// one. So the old leader commits nothing.
//
// # Rejected alternatives
//
// Majorities instead of an ISR (Raft): three replicas would also survive one loss, and a commit would wait only for the
// faster follower. But after the loss of one node, no second copy would be guaranteed to be complete. The price of the
// ISR is a round trip to the store when a follower fails; LagMaxNs bounds that.
//
// Truncation to the known Committed on restart (KIP-101): it cuts batches that others count on. Committed is not a
// position to cut to, only one never to cut below.
//
// One epoch per message of the comparison, repeated until both sides agree (KIP-279): this takes more round trips, and
// each of them can have a late answer.
//
// Waiting without limit for a follower to reach a moving Committed before it is proposed: under a steady load it never
// gets there. The original pauses writes for it. Here the follower holds Committed back like a member, for at most
// JoinNs.
//
// Shrinking the ISR below MinISR: the partition could commit nothing more, and fewer replicas could be elected.
//
// Safety based on the lease: clocks jump. The lease keeps a cut-off leader from answering and delivering. Committed
// batches are safe without it, and the simulation runs with leases that never end.
//
// # Where the promises of the original live
//
//	youzan/nsq                                     here
//	PutMessageToCluster, PutMessagesToCluster,     EvPut, EvAppended, EvDurable, ActCommit: no lock, no call over I/O
//	doSyncOpToCluster
//	handleSyncResult (all of the ISR, majority)    Quorum: smallest durable mark of the ISR, len(ISR) >= MinISR
//	doLocalRollback                                nothing to undo: what is above Committed is not visible;
//	                                               after a change of leader ActTruncate
//	doRefresh, ErrEpochMismatch                    Epoch in every message; RejectEpoch, ActRefresh, ErrFenced
//	putMessageOnSlave, putMessagesOnSlave,         Follower.append: arguments, duplicates, place, chain; then an ack
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
//   - Each machine has one owner, which feeds in events in the order in which they happened and carries out actions in
//     order. If an action causes another event, that event is fed in after all actions of the current Step.
//   - ActSend may be lost: every message is repeated. A lost connection needs no event; a process that is gone should
//     bring EvPeerDown.
//   - ActSend never waits for the disk. If memory no longer has the batches, the engine answers EvEvicted, and the
//     machine asks for them with ActRead, which may take any length of time. A new ActRead for the same node and
//     purpose replaces one that has not begun.
//   - EvDurable carries the generation that the log had when the sync was requested.
//   - A reset is on stable storage before EvTruncated. A cut only has to precede later appends in the commit log.
//   - Batches recovered after a crash are synced before NewFollower counts them as Durable.
//   - The log that a Leader's successor starts from contains every appended batch, including those that the stopped
//     Leader was not told about.
//   - The engine sets Log.Shortened for a log that may lack what it acknowledged, in later processes too, until the
//     machine's Shortened method says that the log is whole. If a Leader begins to say that its log is shortened, the
//     engine keeps that.
//   - What ActTruncate, ActReset and ActDiscard take from a log is kept aside, so that no rule's error is a loss. The
//     exception is a reset with Flag: the leader's retention removed what it takes.
//   - A new machine starts without known damage: the engine reports unreadable batches to it again.
//   - The store grants an epoch once, to one process. It elects only a member of the ISR that is Electable and not
//     listed in State.Short, and adds no member under a disk that its node does not have.
package replicate
