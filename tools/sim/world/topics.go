package world

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Topics that are deleted and made again under the same name are several topicModels, one for each uuid that the store
// gives. What a node does for a client it does for the one that it knows: clients who talk to a node that has not heard
// of the end of a topic still use the old one, and nothing that they publish there may come out of the new one.

// maxPartitions is how many a topic gets at most.
const maxPartitions = 6

func (w *World) newModel(index int) *topicModel {
	return &topicModel{
		index: index, name: fmt.Sprintf("t%d", index), partitions: w.opt.partitions, ids: map[node.ID]int{},
		versions: map[uint64]meta.TopicSettings{},
		letters:  map[letter]bool{}, goneFrom: map[process]bool{}, served: map[uint32]msgID{},
	}
}

// topic is t on this node, and no other of its name.
func (n *host) topic(t *topicModel) (*node.Topic, bool) {
	topic, ok := n.e.Catalog().LookupTopic(t.name)
	if !ok || topic.ID() != t.id {
		return nil, false
	}
	if t.goneFrom[process{n.name, n.life}] {
		n.w.fail("%s knows topic %s again, whose deletion it has answered", n.name, t.name)
	}
	return topic, true
}

// made gives a topic that the store makes its model.
func (w *World) made(mt *meta.Topic) {
	t := w.topicNamed(mt.Name)
	if t.id != uuid.Nil {
		if !t.gone {
			w.fail("BUG of the simulation: topic %s is made while there is one", t.name)
		}
		w.Stats.Remade++
		t = w.newModel(t.index)
		w.topics[t.index] = t
	}
	t.id = mt.ID
	w.models[mt.ID] = t
}

// deleted: the store has deleted a topic.
func (w *World) deleted(id uuid.UUID) {
	t := w.models[id]
	if !t.doomed {
		w.fail("topic %s is deleted, which nobody has asked for", t.name)
	}
	t.gone = true
	w.Stats.Deleted++
	// Whoever makes it again may talk to a node that has not heard of its end.
	w.after(w.skewed(0, 300*ms), func() { w.makeTopic(t.index) })
}

// changeTopics deletes a topic, which is made again, or gives it more partitions.
func (w *World) changeTopics() {
	n, t := w.anyNode(), w.topics[w.rng.IntN(len(w.topics))]
	switch {
	case !w.loaded, n == nil, !t.ready, t.doomed:
	case w.chance(0.3):
		more := 1 + w.rng.IntN(2)
		w.configureTopic(n, t, func(s *meta.TopicSettings) { s.Partitions = min(s.Partitions+more, maxPartitions) })
	case w.chance(0.4): // as an operator's tool does
		if mt := w.store.snap.Topics[t.id]; mt != nil && mt.Partitions < maxPartitions && w.now >= w.store.out {
			w.expandTopic(fmt.Sprintf("topic %s is to have %d partitions", t.name, mt.Partitions+1), t.id, mt.Partitions+1)
		}
	default:
		t.doomed = true
		for _, c := range t.channels {
			c.doomed = true
		}
		w.deleteTopic(t)
	}
}

// deleteTopic asks until the store has done it.
func (w *World) deleteTopic(t *topicModel) {
	if t.gone {
		return
	}
	if n := w.anyNode(); n != nil {
		life := n.life
		n.task(func(e *node.Engine) error {
			if _, ok := n.topic(t); !ok {
				return errs.ErrNoTopic
			}
			return e.DeleteTopic(context.Background(), t.name)
		}, func(err error) {
			w.tracef("delete topic %s through %s: %v", t.name, n.name, err)
			if err != nil {
				return
			}
			if !t.gone {
				w.fail("the deletion of topic %s was answered OK, and the store has it", t.name)
			}
			t.goneFrom[process{n.name, life}] = true
		})
	}
	w.after(500*ms, func() { w.deleteTopic(t) })
}

// refusedByDeletion: what is published while a topic goes may have been stored before.
func (w *World) refusedByDeletion(err error, v *value) bool {
	if !errors.Is(err, errs.ErrDeleted) && !errors.Is(err, errs.ErrNoTopic) {
		return false
	}
	if !v.topic.doomed {
		w.fail("a message for topic %s is refused: %v; nobody has asked for that", v.topic.name, err)
	}
	return true
}

// remains says what nodes still have of topics that are deleted.
func (w *World) remains() string {
	if !w.has(FeatureTopics) {
		return ""
	}
	for _, n := range w.nodes {
		dirs, err := n.media.ReadDir("topics")
		if err != nil {
			continue
		}
		for _, d := range dirs {
			// Without a description it is what was left of its making.
			if !slices.ContainsFunc(n.files(path.Join("topics", d.Name())), func(name string) bool {
				return name == "topic.json"
			}) {
				continue
			}
			if id, err := uuid.Parse(d.Name()); err != nil || w.store.snap.Topics[id] == nil {
				return fmt.Sprintf("%s still has files of topic %s, which is deleted", n.name, d.Name())
			}
		}
	}
	return ""
}

func (n *host) files(dir string) (names []string) {
	list, _ := n.media.ReadDir(dir)
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// grow adds the partitions that a topic has more in its next row, as package cluster does: on as many nodes as there
// are.
func (s *store) grow(next *meta.Snapshot, was, now *meta.Topic) error {
	if now.Partitions == was.Partitions {
		return nil
	}
	live := s.liveNodes()
	if min(len(live), now.Replicas) < max(1, now.MinISR) {
		return meta.ErrTooFewNodes
	}
	for n := was.Partitions; n < now.Partitions; n++ {
		s.addPartition(next, now, n, live)
	}
	s.w.Stats.Expanded += now.Partitions - was.Partitions
	s.w.tracef("store: topic %s has %d partitions", was.Name, now.Partitions)
	return nil
}

// fill gives partitions the replicas that were not there when they were made: one at a time, as planner.growth.
func (s *store) fill() {
	for _, id := range s.snap.Partitions.IDs() {
		p := s.snap.Partitions.Get(id)
		if _, moves := s.moves[id]; moves || !s.led(p) || len(p.State.Replicas) >= s.snap.Topics[id.Topic].Replicas ||
			len(p.State.Replicas) > len(p.State.ISR) {
			continue
		}
		if to := s.spare(p); to != 0 {
			row := cloneRow(p)
			row.State.Replicas = append(row.State.Replicas, to)
			s.change(row, fmt.Sprintf("gets node %d", to))
		}
	}
}
