package main

import (
	"regexp"
	"strings"
	"testing"
)

// config and serve warn of variables with old names.
func TestOldVariablesAreTold(t *testing.T) {
	t.Setenv("ENGINE_MAX_TOPICS", "7")
	o := execute(t, "config")
	if !strings.Contains(o.stderr, "penstock: the environment variable ENGINE_MAX_TOPICS is called PENSTOCK_MAX_TOPICS") ||
		!regexp.MustCompile(`max_topics +7 `).MatchString(o.stdout) {
		t.Errorf("config: %+v", o)
	}
	p := startNode(t, t.TempDir())
	p.waitLog(t, "ENGINE_MAX_TOPICS is called PENSTOCK_MAX_TOPICS now")
}
