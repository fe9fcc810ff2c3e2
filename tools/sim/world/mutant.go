package world

// Mutant is a lie of the world around the engine, or of its store: what happens then are the failures that the engine
// exists to prevent, and the checkers must see them. That shows that they can see anything.
type Mutant uint8

// The lies.
const (
	MutantNone          Mutant = iota
	MutantEarlySync            // a disk says that a write is on stable storage when it is in a cache
	MutantNoSync               // a disk ignores every flush
	MutantUnclean              // the store elects who is not in the ISR
	MutantEpochs               // the store gives a restarted process the epoch of the one before
	MutantDisks                // the store takes an empty disk for the one that was there before
	MutantRollback             // a machine that loses its power comes back with its disk as it was a while ago
	MutantShort                // the store tells nodes to keep less of a topic than its settings say
	MutantSameTopic            // the store gives a topic that is made again the identity of the one before
	MutantSilentGrowth         // the store adds partitions, and the version of the settings does not rise
	MutantOtherFilter          // who configures a channel's filter takes one rule for all, and all for one
	MutantLostLetters          // who sends dead letters back only empties the channel that keeps them
	MutantIllDisk              // a disk that is slow or hangs says at once that a write is on stable storage
	MutantSpot                 // a disk that hangs stores what is written on the spot
	MutantDeafDisk             // a disk that fails reads and writes says that they succeeded
	MutantBothClocks           // when a wall clock is set, the monotonic one leaps as far
	MutantSecondHang           // another disk hangs than the one that is said to
	MutantEarlyLevel           // the store raises the cluster before all nodes know the level
	MutantRotEverywhere        // bits rot on all nodes
	MutantEcho                 // a message that another node was sent comes there once more, later
	MutantStaleList            // a list of the metadata store shows what was there a while ago
	MutantBlindTxn             // the metadata store writes without comparing
	MutantNoMarks              // a commit log at rest writes no mark
	MutantNoProbes             // nobody asks an idle disk
	MutantWrongRack            // nodes say that they stand in another rack than they do
	MutantManyMoves            // the cluster's rebalance-moves is more than the operator knows
	MutantHastyShrink          // who removes a replica removes another one, too
	MutantSameReplicas         // the store says that a topic has other replicas now, and keeps the old number
	MutantDeafPause            // the store says that a rebalance has paused, and does not keep that
	MutantDeafOrder            // leaders do not know whom an operator prefers
	MutantNameless             // programs leave the producer out of their batches
	MutantShortKeep            // the store tells nodes to keep less of what is confirmed than a topic's settings say
	MutantKeepIsAll            // the store tells nodes to remove what is unconfirmed, too, behind what is to be kept
	MutantUnnumbered           // publishers leave the producer out of their puts
	MutantForkElsewhere        // who makes a fork begins it at the end
	MutantHasty                // the store removes a node that has replicas: others take its place in the ISR
)

// Mutants names all of them.
var Mutants = map[string]Mutant{
	"early-sync": MutantEarlySync, "no-sync": MutantNoSync, "unclean-election": MutantUnclean,
	"epoch-reuse": MutantEpochs, "empty-disk": MutantDisks, "rollback": MutantRollback, "short-retention": MutantShort,
	"same-topic": MutantSameTopic, "silent-growth": MutantSilentGrowth, "hasty-removal": MutantHasty,
	"ill-disk": MutantIllDisk, "spot": MutantSpot, "deaf-disk": MutantDeafDisk, "both-clocks": MutantBothClocks,
	"second-hang": MutantSecondHang, "stale-list": MutantStaleList, "echo": MutantEcho, "blind-txn": MutantBlindTxn,
	"rot-everywhere": MutantRotEverywhere, "early-level": MutantEarlyLevel,
	"no-marks": MutantNoMarks, "no-probes": MutantNoProbes,
	"other-filter": MutantOtherFilter, "lost-letters": MutantLostLetters,
	"wrong-rack": MutantWrongRack, "many-moves": MutantManyMoves, "hasty-shrink": MutantHastyShrink,
	"same-replicas": MutantSameReplicas, "deaf-pause": MutantDeafPause, "deaf-order": MutantDeafOrder,
	"nameless": MutantNameless, "short-keep": MutantShortKeep, "keep-is-all": MutantKeepIsAll,
	"unnumbered": MutantUnnumbered, "fork-elsewhere": MutantForkElsewhere,
}
