package engine_test

import (
	"errors"
	"path/filepath"
	"testing"

	"penstock/engine"
)

// Options of a cluster that cannot work are refused before anything is opened.
func TestClusterOptionsAreChecked(t *testing.T) {
	t.Parallel()
	metadata := engine.NewMetadata()
	defer metadata.Close()
	for name, c := range map[string]*engine.Cluster{
		"no metadata":             {},
		"an address of nobody":    {Metadata: metadata, Listen: "0.0.0.0:0"},
		"an address without port": {Metadata: metadata, Listen: "127.0.0.1"},
	} {
		_, err := engine.Open(t.Context(), engine.Options{
			Path: filepath.Join(t.TempDir(), "data"), NodeID: "a", Logger: quiet, Cluster: c,
		})
		if !errors.Is(err, engine.ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
