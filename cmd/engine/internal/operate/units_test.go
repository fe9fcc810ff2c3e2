package operate

import "testing"

func TestWithoutUnits(t *testing.T) {
	for text, want := range map[string]string{
		`{"retention_age": "72h", "x": 1}`:                       `{"retention_age_ms":259200000,"x":1}`,
		`{"retention_age_ms":"10d"}`:                             `{"retention_age_ms":864000000}`,
		`{"topics":[{"settings":{"keep_bytes":"10GiB"}}]}`:       `{"topics":[{"settings":{"keep_bytes":10737418240}}]}`,
		`{"keep_age":"none","quota_bytes":"none"}`:               `{"keep_age_ms":-1,"quota_bytes":0}`,
		`{"retention_bytes": 5, "big": 12345678901234567890}`:    `{"retention_bytes": 5, "big": 12345678901234567890}`,
		`{"dead_letter": "72h", "retention_bytes": 10737418240}`: `{"dead_letter": "72h", "retention_bytes": 10737418240}`,
		`{"rate_bytes":"1MiB","max_in_flight":"5"}`:              `{"max_in_flight":"5","rate_bytes":1048576}`,
		`not JSON`: `not JSON`,
	} {
		if got, err := WithoutUnits([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		`{"retention_age":"72"}`, `{"retention_age":"72h","retention_age_ms":5}`, `{"keep_bytes":"10 apples"}`,
		`[{"retention_bytes":"10"}]`,
	} {
		if got, err := WithoutUnits([]byte(text)); err == nil {
			t.Errorf("%s became %s", text, got)
		}
	}
}
