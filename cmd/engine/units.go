package main

import (
	"bytes"
	"encoding/json"
	"strings"
)

// unitNames are the settings whose numbers may be written with units in a document: those of a duration, which JSON has
// in ms, and those of a size.
var unitNames = map[string]func(string) (int64, error){
	"retention_age_ms": parseAge, "keep_age_ms": parseAge,
	"retention_bytes": parseRetention, "keep_bytes": parseRetention, "quota_bytes": parseBytes,
}

// withoutUnits replaces texts with units in settings by their numbers: "retention_age": "72h" and "retention_age_ms":
// "72h" by "retention_age_ms": 259200000, "keep_bytes": "none" by -1. What is no JSON, and other texts, stay: whoever
// decodes the settings says what is wrong with them.
func withoutUnits(data []byte) ([]byte, error) {
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
		for name, value := range v {
			text, isText := value.(string)
			full := name
			if strings.HasSuffix(name, "_age") {
				full += "_ms"
			}
			parse := unitNames[full]
			if !isText || parse == nil {
				inner = append(inner, value)
				continue
			}
			n := int64(-1)
			if text != "none" {
				if n, err = parse(text); err != nil {
					return false, err
				}
			} else if full == "quota_bytes" {
				n = 0
			}
			delete(v, name)
			v[full], changed = n, true
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
