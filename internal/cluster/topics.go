package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

func checkTopic(t *meta.Topic) error {
	switch {
	case t.Name == "" || len(t.Name) > MaxTopicNameBytes || strings.Contains(t.Name, "/"):
		return fmt.Errorf("cluster: %q cannot name a topic: it was not made", t.Name)
	case t.Partitions < 1 || t.Partitions > MaxPartitionCount:
		return fmt.Errorf("cluster: a topic of %d partitions: 1 to %d are possible; nothing was made",
			t.Partitions, MaxPartitionCount)
	case t.Replicas < 1 || t.Replicas > replicate.MaxReplicaCount:
		return fmt.Errorf("cluster: a topic of %d replicas: 1 to %d are possible; nothing was made",
			t.Replicas, replicate.MaxReplicaCount)
	case t.MinISR < 1 || t.MinISR > t.Replicas:
		return fmt.Errorf("cluster: min_isr %d of %d replicas: 1 to all of them are possible; nothing was made",
			t.MinISR, t.Replicas)
	}
	return nil
}

// CreateTopic implements meta.Store.
func (s *store) CreateTopic(ctx context.Context, t meta.Topic) (made *meta.Topic, err error) {
	chosen := t.ID != uuid.Nil // by the caller
	var tried []uuid.UUID      // of the attempts without an answer
	if !chosen {
		t.ID = s.newUUID()
	}
	if t.CreatedNs == 0 {
		t.CreatedNs = s.opts.Now().UnixNano()
	}
	p := s.endure(ctx)
	err = p.repeat(func() (*state, bool, int64, error) {
		st, nodes, err := s.takers(ctx)
		if err != nil {
			return nil, false, 0, err
		}
		if made = st.snap.Names[t.Name]; made != nil && slices.Contains(tried, made.ID) {
			return st, true, 0, nil // the attempt without an answer was applied
		} else if made != nil {
			return nil, false, 0, meta.ErrExists
		}
		want, replicas := t, t.Replicas
		if want.Replicas == 0 {
			// The topic gets as many replicas as there are nodes for them, and the others when more nodes join. min_isr is
			// based on all registered nodes, because one may be away only for a moment: if too few of them are alive,
			// the topic is not made.
			want.Replicas = s.changedOpts.Load().DefaultReplicas
			replicas = min(want.Replicas, len(nodes))
		}
		if want.MinISR == 0 {
			want.MinISR = majority(want.Replicas)
		}
		if err := checkTopic(&want); err != nil {
			return nil, false, 0, err
		}
		now := want // the controller raises min_isr to want.MinISR when enough replicas are in sync
		if t.Replicas == 0 {
			now.MinISR = min(want.MinISR, majority(max(1, min(want.Replicas, len(st.snap.Nodes)))))
		}
		placed, err := s.place(st, nodes, &now, 0, want.Partitions, replicas)
		if err != nil && p.fresh {
			return nil, false, 0, final{p.explain(err)}
		} else if err != nil {
			return nil, false, 0, err
		}
		conds := st.conds(s.opts.Prefix, usedNodes(placed)...)
		ok, revision, err := s.writeTopic(ctx, &want, 0, newPartitions(st.snap, &now, 0, placed), conds)
		if err != nil {
			// If that attempt was applied and the topic was deleted since, nothing in the store tells: the name is free again.
			// Then this is another topic. Nodes may still have data of the first one, which must not become data of this one.
			if tried = append(tried, t.ID); !chosen {
				t.ID = s.newUUID()
			}
		}
		if ok {
			made = &want
		}
		return st, ok, revision, err
	})
	return made, err
}

// place chooses replicas for count more partitions of a topic, on nodes that takers has returned.
func (s *store) place(
	st *state, nodes []*meta.Node, t *meta.Topic, first, count, replicas int,
) ([][]replicate.NodeID, error) {
	if replicas < t.MinISR {
		err := fmt.Errorf("min_isr %d with %d live nodes: %w", t.MinISR, replicas, meta.ErrTooFewNodes)
		return nil, tooFew(err, st.snap, nodes)
	}
	existing := newLoad()
	for n := range first {
		if p := st.snap.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)}); p != nil {
			existing.count(&p.State, 1)
		}
	}
	placed, err := place(nodes, count, replicas, st.load, existing)
	if err != nil {
		err = tooFew(err, st.snap, nodes)
	}
	return placed, err
}

// writeTopic writes a topic's row and rows of partitions. The topic's row must be at topicRev; 0 means that the topic
// is new, and then its name must be free. Rows that do not fit into one transaction are written before the topic's row,
// under a creation row. If this process dies, the creation row ends with its lease. Nobody sees partitions that no
// topic's row counts, and the controller removes those that belong to no creation (B85, B86). Each transaction compares
// the topic's row: once another node has added partitions, rows of the same partitions must not be written over theirs.
func (s *store) writeTopic(
	ctx context.Context, t *meta.Topic, topicRev int64, parts []*meta.Partition, conds []kv.Cond,
) (bool, int64, error) {
	unchanged := kv.Cond{Key: s.key(topicKey(topicsDir, t.ID)), ModRevision: topicRev}
	ops := []kv.Op{put(unchanged.Key, t)}
	conds = append(conds, unchanged)
	if topicRev == 0 {
		name := s.key(namesDir + t.Name)
		ops, conds = append(ops, put(name, t.ID)), append(conds, kv.Cond{Key: name})
	}
	rows := make([]kv.Op, 0, len(parts))
	for _, p := range parts {
		rows = append(rows, kv.Op{Key: s.key(partKey(partsDir, p.ID)), Value: encodePartition(p)})
	}
	if len(rows)+len(ops) <= maxTxnCount {
		return s.txn(ctx, conds, append(ops, rows...))
	}

	creation := s.key(topicKey(creatingDir, t.ID))
	lease, err := s.kv.Grant(ctx, creationTime)
	if err != nil {
		return false, 0, unavailable(err)
	}
	defer func() {
		ctx, cancel := s.withTimeout(context.WithoutCancel(ctx), maxCallTime)
		defer cancel()
		_ = s.kv.Revoke(ctx, lease) // this also deletes the creation row, if it still exists
	}()
	begin := kv.Op{Key: creation, Value: encode(t.Name), Lease: lease}
	ok, token, err := s.txn(ctx, []kv.Cond{{Key: creation}, unchanged}, []kv.Op{begin})
	if !ok || err != nil {
		return false, 0, err
	}
	inCreation := kv.Cond{Key: creation, ModRevision: token}
	last := maxTxnCount - len(ops) - 1
	for len(rows) > last {
		n := min(maxTxnCount, len(rows)-last)
		if ok, _, err = s.txn(ctx, []kv.Cond{inCreation, unchanged}, rows[:n]); !ok || err != nil {
			return false, 0, err
		}
		rows = rows[n:]
	}
	return s.txn(ctx, append(conds, inCreation), append(append(ops, rows...), remove(creation)))
}

// topic returns a topic's row. If the watch does not know the topic, it asks the store itself.
func (s *store) topic(ctx context.Context, id uuid.UUID) (*state, *meta.Topic, error) {
	st, err := s.current()
	if err != nil {
		return nil, nil, err
	}
	if st.snap.Topics[id] == nil {
		e, err := s.get(ctx, topicKey(topicsDir, id))
		if err != nil {
			return nil, nil, err
		}
		if err := s.waitRevision(ctx, e.ModRevision); err != nil {
			return nil, nil, err
		}
		st = s.cur.Load()
	}
	t := st.snap.Topics[id]
	if t == nil {
		return nil, nil, meta.ErrNotFound
	}
	return st, t, nil
}

// DeleteTopic implements meta.Store. The topic ends with its row. Its other rows are removed later, by the controller.
func (s *store) DeleteTopic(ctx context.Context, id uuid.UUID) error {
	p := s.endure(ctx)
	return p.repeat(func() (*state, bool, int64, error) {
		st, t, err := s.topic(ctx, id)
		if errors.Is(err, meta.ErrNotFound) && p.tried() {
			return nil, true, 0, nil // the attempt without an answer was applied
		} else if err != nil {
			return nil, false, 0, err
		}
		key := s.key(topicKey(topicsDir, id))
		ok, revision, err := s.txn(ctx, []kv.Cond{{Key: key, ModRevision: st.topics[id]}}, []kv.Op{
			remove(key),
			remove(s.key(namesDir + t.Name)),
			put(s.key(topicKey(deletedDir, id)), deletedRow{Name: t.Name, AtNs: s.opts.Now().UnixNano()}),
		})
		return st, ok, revision, err
	})
}

// ExpandTopic implements meta.Store.
func (s *store) ExpandTopic(ctx context.Context, id uuid.UUID, partitions int) error {
	return s.endure(ctx).repeat(func() (*state, bool, int64, error) {
		st, t, err := s.topic(ctx, id)
		if err != nil || partitions == t.Partitions {
			return st, err == nil, 0, err
		}
		want := *t
		want.Settings = t.Expanded()
		want.Partitions = partitions
		if partitions < t.Partitions {
			return nil, false, 0, fmt.Errorf("cluster: topic %q has %d partitions, and partitions cannot be taken away: "+
				"nothing was changed", t.Name, t.Partitions)
		}
		if err := checkTopic(&want); err != nil {
			return nil, false, 0, err
		}
		ok, revision, err := s.writeGrown(ctx, st, t, &want)
		return st, ok, revision, err
	})
}

// writeGrown replaces the row t of a topic by want, and writes the rows of its additional partitions.
func (s *store) writeGrown(ctx context.Context, st *state, t, want *meta.Topic) (bool, int64, error) {
	if want.Partitions == t.Partitions {
		return s.writeTopic(ctx, want, st.topics[t.ID], nil, nil)
	}
	apart, _ := s.lookAround(st)
	nodes := reached(candidates(st.snap), apart)
	placed, err := s.place(st, nodes, want, t.Partitions, want.Partitions-t.Partitions, min(t.Replicas, len(nodes)))
	if err != nil {
		return false, 0, err
	}
	conds := st.conds(s.opts.Prefix, usedNodes(placed)...)
	return s.writeTopic(ctx, want, st.topics[t.ID], newPartitions(st.snap, want, t.Partitions, placed), conds)
}

// ConfigureTopic implements meta.Store. The rows of the partitions follow the topic's row: see planner.growth.
func (s *store) ConfigureTopic(ctx context.Context, id uuid.UUID, settings meta.TopicSettings) (*meta.Topic, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	p := s.endure(ctx)
	var tried meta.Topic // what the last attempt wrote
	err := p.repeat(func() (*state, bool, int64, error) {
		st, t, err := s.topic(ctx, id)
		if err != nil || p.tried() && *t == tried {
			return st, err == nil, 0, err // the attempt without an answer was applied
		}
		want := *t
		want.Settings = settings.Stored()
		want.Settings.Version++
		if want.MinISR = settings.WantedMinISR(t.Replicas); want.MinISR > t.Replicas {
			return nil, false, 0, fmt.Errorf("%w: min_isr is %d; the topic has %d replicas, so no write would ever succeed",
				meta.ErrSettings, want.MinISR, t.Replicas)
		}
		switch {
		case settings.Version < t.Settings.Version && p.tried():
			return nil, false, 0, final{p.unknown}
		case settings.Version < t.Settings.Version:
			return nil, false, 0, fmt.Errorf("version %d of topic %q is not the newest: %w", settings.Version, t.Name,
				meta.ErrConflict)
		case settings.Version > t.Settings.Version:
			return st, false, 0, nil // the watch is behind the caller
		}
		if want.Partitions, err = settings.WantedPartitions(t.Partitions, MaxPartitionCount); err != nil {
			return nil, false, 0, err
		}
		tried = want
		ok, revision, err := s.writeGrown(ctx, st, t, &want)
		return st, ok, revision, err
	})
	if err != nil {
		return nil, err
	}
	return &tried, nil
}

// Tombstone implements meta.Store.
func (s *store) Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		t := st.snap.Names[key.Topic]
		if t == nil || st.snap.Nodes[key.Node] == nil {
			return nil, nil, meta.ErrNotFound
		}
		return []kv.Cond{{Key: s.key(topicKey(topicsDir, t.ID)), ModRevision: st.topics[t.ID]}},
			[]kv.Op{put(s.key(tombstoneKey(key)), tombstoneRow{UntilNs: until.UnixNano()})}, nil
	})
}
