package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// When a node rewrites a row, it keeps the fields that this version does not know: a newer version, which may run on
// another node, put them there. Only a node's registration starts its row from scratch, because whatever an earlier
// process said of itself no longer holds.

// rawRow is the stored value of a row that has unknown fields.
type rawRow struct {
	rev   int64
	value []byte
}

// knownRow decodes a value as a row of its key's type and encodes it again, so the result has only the fields that this
// version knows. strict makes unknown fields an error. For a key whose rows are never rewritten it returns nil.
func knownRow(key string, value []byte, strict bool) ([]byte, error) {
	row, err := decodeKnown(key, value, strict)
	if row == nil || err != nil {
		return nil, err
	}
	return encode(row), nil
}

// decodeKnown is knownRow without the encoding: every node does it for every row.
func decodeKnown(key string, value []byte, strict bool) (row any, err error) {
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
	case dir == "" && rest == rebalanceKey:
		row = new(meta.Rebalance)
	case dir == "" && rest == levelKey:
		row = new(levelRow)
	default:
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	if strict {
		d.DisallowUnknownFields()
	}
	return row, d.Decode(row)
}

// noteUnknown remembers a row if it has fields that this version does not know. The row itself was readable.
func (b *builder) noteUnknown(key string, e *kv.Event) {
	unknown := false
	if !e.Deleted {
		_, err := decodeKnown(key, e.Value, true)
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

// revOf returns the revision of a row that may have unknown fields; 0 means that there is no such row.
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
		switch p := s.parts.Get(id); {
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
		if rest == rebalanceKey {
			return s.rebalanceRev
		}
		return s.levelRev
	}
	return 0
}

// keepUnknown adds the unknown fields of the present rows to the rows that ops write. The ops were decided on st or a
// newer state. If a condition compares a row's revision and that is not the revision that the watch has brought, the
// row is read from the store itself. If the row has changed once more by then, the transaction will be refused anyway.
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
			continue // it has nothing that could be kept
		}
		if &out[0] == &ops[0] {
			out = slices.Clone(ops)
		}
		out[i].Value = mergeUnknown(old.value, known, ops[i].Value)
	}
	return out, nil
}

// mergeUnknown returns next together with the parts of old that this version does not know. known is the part of old
// that it does know. All three are JSON. An object keeps the keys that known lacks; in a list, each element that is
// unchanged keeps those of its old form.
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
