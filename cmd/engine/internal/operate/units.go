package operate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/settings"
)

// unit is a setting whose number may be written with a unit in a document: a duration, which JSON has in ms, or a size.
type unit struct {
	name string // in JSON
	read func(text string) (number json.RawMessage, err error)
}

// units has them by their names in JSON, and durations also by the name without _ms.
var units = func() map[string]unit {
	all := map[string]unit{}
	addUnits(all, meta.TopicRows)
	addUnits(all, fold.ChannelRows)
	return all
}()

func addUnits[S any](all map[string]unit, rows settings.Table[S]) {
	for i := range rows {
		r := &rows[i]
		kind, _, _ := strings.Cut(r.Of(new(S)).Type(), "|")
		if kind != "bytes" && kind != "duration" {
			continue
		}
		u := unit{r.Name, func(text string) (json.RawMessage, error) { return numberOf(r, text) }}
		all[r.Name] = u
		all[strings.TrimSuffix(r.Name, "_ms")] = u
	}
}

// numberOf returns the number that JSON has for a text with a unit.
func numberOf[S any](r *settings.Row[S], text string) (json.RawMessage, error) {
	s := new(S)
	if text == "none" && r.Zero == "no limit" {
		return json.RawMessage("0"), nil
	}
	if err := r.Of(s).Set(text); err != nil {
		return nil, err
	}
	if why := r.Nonsense(s); why != "" {
		return nil, errors.New(why)
	}
	var all map[string]json.RawMessage
	encoded, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(encoded, &all)
	}
	if n, ok := all[r.Name]; ok || err != nil {
		return n, err
	}
	return json.RawMessage("0"), nil // which is left out
}

// WithoutUnits replaces texts with units in settings by their numbers: "retention_age": "72h" and "retention_age_ms":
// "72h" by "retention_age_ms": 259200000, "keep_bytes": "none" by -1. What is no JSON, and other texts, stay: whoever
// decodes the settings says what is wrong with them.
func WithoutUnits(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return data, nil
	}
	changed, err := replaceUnits(v)
	if err != nil || !changed {
		return data, err
	}
	return json.Marshal(v)
}

func replaceUnits(v any) (changed bool, err error) {
	var inner []any
	switch v := v.(type) {
	case []any:
		inner = v
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text, isText := v[name].(string)
			u, has := units[name]
			if !isText || !has {
				inner = append(inner, v[name])
				continue
			}
			if _, twice := v[u.name]; twice && u.name != name {
				return false, fmt.Errorf("%s and %s are the same setting", name, u.name)
			}
			n, err := u.read(text)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			delete(v, name)
			v[u.name], changed = n, true
		}
	}
	for _, x := range inner {
		some, err := replaceUnits(x)
		if err != nil {
			return false, err
		}
		changed = changed || some
	}
	return changed, nil
}
