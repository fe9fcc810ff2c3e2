package cli

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"data_path", "io", "max_topics"}
	for in, want := range map[string]string{
		"datapath": "data_path", "i": "io", "max_topic": "max_topics", "tls_ca": "", "xyz": "", // O12: nothing is near
	} {
		if got := nearest(in, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
