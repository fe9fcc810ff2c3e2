package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Feature is something that a world does in some seeds only. A world without any is, draw for draw, what it was before
// there were features, so that old seeds stay the histories that they were written down for.
type Feature uint32

// The features.
const (
	FeatureRemote Feature = 1 << iota // consumers at nodes that lead nothing of their topic
	FeatureMoves                      // replicas move to other nodes and back, nodes are drained, or join late
	// channels are ordered, have a limit of attempts and dead letters; messages wait for long
	FeatureChannels
	FeatureSettings // topics' retention and quotas are changed
	FeatureTopics   // topics are deleted and made again under their names, and get more partitions
	FeatureNodes    // dead nodes are removed for good; they come back later, mostly with an empty disk
	FeatureFilters  // channels want some messages only, and their dead letters are sent back
	FeaturePlain    // none of the others; in Config.Features only
	FeatureSlow     // disks are slow, up to seconds for a write
	FeatureHung     // disks hang, for long
	FeatureErrors   // reads and writes of disks fail, for long
	FeatureRot      // bits of one node's files rot, at rest and in use
	FeatureClocks   // wall clocks are set by hours, both ways
	FeatureStrict   // consumers at nodes that lead nothing are checked for order and for FIN like all others
	FeatureLevels   // nodes know two feature levels, and the cluster is raised to the second
	FeatureCluster  // the real package cluster instead of its model: leases are lost, watches lag, histories are compacted
	FeatureBound    // a healthy majority may refuse publishing for so long only
	FeatureIdle     // producers rest: commit logs write marks, idle disks are asked
	// replicas per topic change, several racks are rebalanced, leaderships are transferred; with FeatureCluster
	FeaturePlacement
	FeatureProducers // programs number their messages and send batches again until the answer is sure
	FeatureKeep      // topics keep what is confirmed, and programs read it again
	FeatureNumbered  // publishers that cannot seal batches name a producer beside their puts, at any node
	FeatureForks     // channels begin as forks of others
	FeatureForget    // nodes lose files, go back to earlier states of their disks, or run twice
	FeatureCorpse    // at the end a node dies for good while operators move replicas to it and drain others
	FeatureGhosts    // publishers that hold their names no more go on: see ghosts.go
	FeatureNative    // native clients consume ordered channels: see native.go
)

// grayDefault are the gray failures that seeds draw by themselves, and how often. A new one comes last: then the draws
// of the others stay what they were.
var grayDefault = []struct {
	f Feature
	p float64
}{
	{FeatureSlow, 0.3},
	{FeatureHung, 0.3},
	{FeatureErrors, 0.3},
	{FeatureClocks, 0.25},
	{FeatureLevels, 0.25},
	{FeatureBound, 0.1},
	{FeatureCluster, 0.25},
	{FeatureIdle, 0.4},
	{FeatureStrict, 0.25},
	{FeatureRot, 0.2},
}

// Features names all of them.
var Features = map[string]Feature{
	"remote": FeatureRemote, "moves": FeatureMoves, "channels": FeatureChannels, "settings": FeatureSettings,
	"topics": FeatureTopics, "nodes": FeatureNodes, "filters": FeatureFilters, "plain": FeaturePlain,
	"slow": FeatureSlow, "hung": FeatureHung, "errors": FeatureErrors, "rot": FeatureRot, "clocks": FeatureClocks,
	"strict": FeatureStrict,
	"bound":  FeatureBound, "idle": FeatureIdle, "levels": FeatureLevels, "cluster": FeatureCluster,
	"placement": FeaturePlacement, "producers": FeatureProducers,
	"keep": FeatureKeep, "numbered": FeatureNumbered, "forks": FeatureForks,
	"forget": FeatureForget, "corpse": FeatureCorpse, "ghosts": FeatureGhosts, "native": FeatureNative,
}

// String lists the names, in order.
func (f Feature) String() string {
	var names []string
	for name, one := range Features {
		if f&one != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// extra are the choices that only features make.
type extra struct {
	operateEvery int64 // moves: what an operator does
	lateNode     bool
}

// later are those of features that came later.
type later struct{ topicsEvery, removeEvery int64 }

// ParseFeatures reads what String writes.
func ParseFeatures(text string) (f Feature, err error) {
	for name := range strings.SplitSeq(text, ",") {
		one, ok := Features[name]
		if !ok {
			return 0, fmt.Errorf("there is no such feature as %q", name)
		}
		f |= one
	}
	return f, nil
}

// drawFeatures chooses them from a stream of their own: what they draw changes no choice of a world without them.
func (w *World) drawFeatures() {
	w.more = rand.New(rand.NewPCG(w.Seed, 0x9e3779b97f4a7c15))
	w.features = w.cfg.Features &^ FeaturePlain
	if w.cfg.Features == 0 {
		for _, one := range []struct {
			f Feature
			p float64
		}{{FeatureRemote, 0.4}, {FeatureMoves, 0.35}, {FeatureChannels, 0.35}, {FeatureSettings, 0.25}} {
			if w.more.Float64() < one.p {
				w.features |= one.f
			}
		}
		if w.more.IntN(5) == 0 {
			w.features = 0
		} else {
			w.drawLater()
		}
		w.drawGray()
		w.drawPlacement()
		w.drawProducers()
		w.drawKeep()
		w.drawForget()
		w.drawCorpse()
		w.drawGhosts()
		w.drawNative()
	}
	if w.has(FeatureCorpse) {
		w.features |= FeaturePlacement
	}
	w.drawForgetKind()
	if w.has(FeaturePlacement) {
		w.features |= FeatureCluster
	}
	if w.has(FeatureMoves | FeatureNodes) {
		w.drawMoves()
	}
	if w.has(FeatureTopics) {
		w.later.topicsEvery = 150*ms + w.more.Int64N(600*ms)
	}
	if w.has(FeatureNodes) {
		w.later.removeEvery = 200*ms + w.more.Int64N(600*ms)
	}
	w.prepareGray()
	w.preparePlacement()
	w.prepareKeep()
	w.prepareLeaps()
	w.prepareForget()
}

// Draws returns the features of a run, without running it.
func Draws(seed uint64, cfg Config) Feature {
	w := newWorld(seed, cfg)
	return w.Features()
}

// drawLater chooses features that came later, from one more stream: seeds that have none of them stay what they were.
func (w *World) drawLater() {
	r := rand.New(rand.NewPCG(w.Seed, 0xd1b54a32d192ed03))
	for _, one := range []struct {
		f Feature
		p float64
	}{{FeatureTopics, 0.2}, {FeatureNodes, 0.15}, {FeatureFilters, 0.2}} {
		if r.Float64() < one.p {
			w.features |= one.f
		}
	}
}

// drawGray chooses gray failures, from a stream of their own for the same reason. Most worlds have none.
func (w *World) drawGray() {
	r := rand.New(rand.NewPCG(w.Seed, 0x2545f4914f6cdd1d))
	if r.IntN(2) == 0 {
		return
	}
	for _, one := range grayDefault {
		if r.Float64() < one.p {
			w.features |= one.f
		}
	}
}

func (w *World) has(f Feature) bool { return w.features&f != 0 }

// Features are what the world does, FeaturePlain if that is nothing. A seed that draws them and the same seed with them
// in Config.Features are two histories: drawing takes from the stream that features draw their choices from.
func (w *World) Features() Feature {
	if w.features == 0 {
		return FeaturePlain
	}
	return w.features
}
