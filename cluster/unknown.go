package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"

	"penstock/cluster/kv"
	"penstock/engine/meta"
)

// Rows keep the fields that this version does not know when it rewrites them: a newer version, of which a node may run
// beside this one, put them there. Only a node's registration begins its row anew, since what another process said of
// itself is over.

// rawRow is a row with unknown fields as it is in the store.
type rawRow struct {
	rev   int64
	value []byte
}

// knownRow decodes a value into the type of its key's rows and encodes it again: what comes back is what this version
// knows of it. strict fails on unknown fields. A key without rows that are rewritten gives nil.
func knownRow(key string, value []byte, strict bool) ([]byte, error) {
	var row any
	switch dir, rest := splitKey(key); {
	case dir == nodesDir:
		row = new(meta.Node)
	case dir == topicsDir:
		row = new(meta.Topic)
	case dir == partsDir:
		row = new(partitionRow)
	case dir == movesDir:
		row = new(moveRow)
	case dir == tombstonesDir:
		row = new(tombstoneRow)
	case dir == "" && rest == levelKey:
		row = new(levelRow)
	default:
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(row); err != nil {
		return nil, err
	}
	return encode(row), nil
}

// noteUnknown remembers a row that has fields which this version does not know. It could be read.
func (b *builder) noteUnknown(key string, e *kv.Event) {
	unknown := false
	if !e.Deleted {
		_, err := knownRow(key, e.Value, true)
		unknown = err != nil
	}
	if _, noted := b.next.raw[key]; !unknown && !noted {
		return
	}
	raw := own(b, "raw", &b.next.raw)
	if delete(raw, key); unknown {
		raw[key] = rawRow{e.ModRevision, bytes.Clone(e.Value)}
	}
}

// revOf is the revision of a row that may have unknown fields; 0: there is none.
func (s *state) revOf(key string) int64 {
	dir, rest := splitKey(key)
	switch dir {
	case nodesDir:
		if id, err := parseNode(rest); err == nil {
			return s.nodes[id].rev
		}
	case topicsDir:
		if id, err := uuid.Parse(rest); err == nil {
			return s.topics[id]
		}
	case partsDir, movesDir:
		id, err := parsePart(rest)
		switch p := s.parts[id]; {
		case err != nil:
		case dir == movesDir:
			return s.moves[id].rev
		case p != nil:
			return p.rev
		}
	case tombstonesDir:
		if k, err := parseTombstone(rest); err == nil {
			return s.tombstones[k]
		}
	case "":
		return s.levelRev
	}
	return 0
}

// keepUnknown adds to the rows that ops write, which were decided on st or a newer state, what the rows that they
// replace have beside the known fields. A row whose revision is compared and is not the one that the watch has brought
// is read where it is; if it is another one by then, nothing will be written.
func (s *store) keepUnknown(ctx context.Context, st *state, conds []kv.Cond, ops []kv.Op) ([]kv.Op, error) {
	if st == nil {
		return ops, nil
	}
	out := ops
	for i := range ops {
		key, found := strings.CutPrefix(ops[i].Key, s.opts.Prefix)
		if !found || ops[i].Value == nil {
			continue
		}
		old := st.raw[key]
		if j := slices.IndexFunc(conds, func(c kv.Cond) bool { return c.Key == ops[i].Key }); j >= 0 {
			switch rev := conds[j].ModRevision; {
			case rev == 0:
				continue
			case old.rev != rev && st.revOf(key) != rev:
				e, err := s.get(ctx, key)
				if err != nil {
					return nil, err
				}
				old = rawRow{e.ModRevision, e.Value}
			}
		}
		if old.value == nil {
			continue
		}
		known, err := knownRow(key, old.value, false)
		if err != nil || known == nil {
			continue // it says nothing that could be kept
		}
		if &out[0] == &ops[0] {
			out = slices.Clone(ops)
		}
		out[i].Value = mergeUnknown(old.value, known, ops[i].Value)
	}
	return out, nil
}

// mergeUnknown is next with what old has beside known, which is what this version knows of old. All three are JSON.
// Objects keep the keys that known lacks; of lists, each element keeps those of the element that it was.
func mergeUnknown(old, known, next json.RawMessage) json.RawMessage {
	var o, k, n map[string]json.RawMessage
	if json.Unmarshal(old, &o) == nil && json.Unmarshal(known, &k) == nil && json.Unmarshal(next, &n) == nil && n != nil {
		for key, value := range o {
			was, isKnown := k[key]
			now, stays := n[key]
			switch {
			case isKnown && stays:
				n[key] = mergeUnknown(value, was, now)
			case !isKnown && !stays:
				n[key] = value
			}
		}
		return encode(n)
	}
	var ol, kl, nl []json.RawMessage
	if json.Unmarshal(old, &ol) != nil || json.Unmarshal(known, &kl) != nil || json.Unmarshal(next, &nl) != nil ||
		len(ol) != len(kl) {
		return next
	}
	for i, e := range nl {
		if j := slices.IndexFunc(kl, func(was json.RawMessage) bool { return bytes.Equal(was, e) }); j >= 0 {
			nl[i] = mergeUnknown(ol[j], kl[j], e)
		}
	}
	return encode(nl)
}
