package settings

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/client"
)

// The old names of variables are read, with a warning; the new name wins.
func TestOldVariables(t *testing.T) {
	file := writeFile(t, "max_topics = 10\n")
	c, err := loaded(t, nil, []string{
		"ENGINE_CONFIG=" + file, "ENGINE_MSG_TIMEOUT=20s", "ENGINE_IO=uring", "PENSTOCK_IO=pwrite", "ENGINE_MAX_CHANNELS=",
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Node.Engine; n.MaxTopics != 10 || n.MsgTimeout.Seconds() != 20 || n.IO != "pwrite" ||
		c.Source["msg-timeout"] != "environment ENGINE_MSG_TIMEOUT" || c.Source["io"] != "environment PENSTOCK_IO" {
		t.Errorf("%+v, %v", n, c.Source)
	}
	want := []string{
		"the environment variable ENGINE_CONFIG is called PENSTOCK_CONFIG now; the next version does not read the old name",
		"the environment variable ENGINE_IO is called PENSTOCK_IO now; the next version does not read the old name, and " +
			"this one does not either, because both are set",
		"the environment variable ENGINE_MSG_TIMEOUT is called PENSTOCK_MSG_TIMEOUT now; the next version does not read " +
			"the old name",
	}
	if !slices.Equal(c.Warnings, want) {
		t.Errorf("the warnings are %q", c.Warnings)
	}
}

// Variables with our prefix that are not meant for serve: those of commands, and those that Kubernetes sets for the
// services of the namespace, in every pod. No setting has a name of them.
func TestVariablesOfOthers(t *testing.T) {
	others := []string{
		client.EnvAddress + "=db1:4151", client.EnvNodes + "=db1:4250", client.EnvToken + "=secret",
		"PENSTOCK_SERVICE_HOST=10.0.0.1", "PENSTOCK_PORT=tcp://10.0.0.1:4150", "PENSTOCK_PORT_4150_TCP=tcp://10.0.0.1:4150",
		"PENSTOCK_CLIENT_SERVICE_HOST=10.0.0.1", "PENSTOCK_CLIENT_SERVICE_PORT=4150",
		"PENSTOCK_CLIENT_SERVICE_PORT_NSQ=4150", "PENSTOCK_CLIENT_PORT_4150_TCP_PROTO=tcp",
		"PENSTOCK_CLIENT_PORT_4150_TCP_PORT=4150", "PENSTOCK_CLIENT_PORT_4150_TCP_ADDR=10.0.0.1",
	}
	c, err := loaded(t, nil, append(others, "PENSTOCK_BROADCAST_TCP_PORT=14150"))
	if err != nil || c.Source["broadcast-tcp-port"] != "environment PENSTOCK_BROADCAST_TCP_PORT" {
		t.Errorf("%v, %q", err, c.Source["broadcast-tcp-port"])
	}
	for _, s := range c.Settings {
		if slices.ContainsFunc(others, func(kv string) bool { return strings.HasPrefix(kv, s.env()+"=") }) {
			t.Errorf("%s is the name of something else", s.env())
		}
	}
	if _, err := loaded(t, nil, []string{"PENSTOCK_NSQ_PORT=4150"}); err == nil {
		t.Error("what is no setting was not refused")
	}
}

// Every name with our prefix in the tree is that of a setting or of a command: a node that a test starts inherits the
// test's variables, and would refuse one that is neither. Those of tests begin with TEST_.
func TestVariablesInTheTree(t *testing.T) {
	known := []string{
		envConfig, client.EnvAddress, client.EnvNodes, client.EnvToken, "PENSTOCK_DATAPATH", "PENSTOCK_MAX_TOPIC", // misspelt
	}
	for _, s := range New(pflag.NewFlagSet("", pflag.ContinueOnError)).Settings {
		known = append(known, s.env())
	}
	cmd := exec.Command("git", "grep", "-hoE", `\b`+envPrefix+`[A-Z_]+`, "--", "*.go", "Makefile", ".ci", "*.sh")
	cmd.Dir = "../../../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not run: git grep: %v", err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if !slices.Contains(known, name) && !strings.Contains(name, "_SERVICE_") && !strings.Contains(name, "_PORT") {
			t.Errorf("%s is neither a setting nor of a command: call it TEST_...", name)
		}
	}
}
