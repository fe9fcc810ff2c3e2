package traffic

import (
	"io"

	"github.com/spf13/pflag"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/load"
)

// benchNative are the flags of bench that are about the native protocol.
type benchNative struct {
	protocol string
	seeds    []string
	compress string
	body     string
	producer nodes.ProducerOptions

	names []string // of its own flags
}

// addBenchNative adds the flags that a mode has.
func addBenchNative(set *pflag.FlagSet, mode string) *benchNative {
	n := &benchNative{protocol: "nsq", body: "random"}
	n.producer.MaxBatchBytes = nodes.DefaultMaxBatchBytes
	switch mode {
	case "read":
		n.protocol = "native"
	case "pub", "sub", "e2e":
		set.Var(values.Choice(&n.protocol, "nsq", "native"), "protocol", "nsq or native")
	default:
		return n
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.StringSliceVar(&n.seeds, "nodes", defaultSeeds(),
		"native: HOST:PORT of the native protocol of one or more nodes, separated by commas (or "+client.EnvNodes+")")
	own.Var(values.Choice(&n.compress, "", "s2", "zstd"), "compress", "native: how producers compress batches: s2 or zstd")
	own.Var(values.Choice(&n.body, "random", "json"), "body", "native: random bodies, which hardly compress, or json")
	own.DurationVar(&n.producer.Linger, "linger", 0, "native: how long a message waits for others to share its batch")
	own.Var(values.Size(&n.producer.MaxBatchBytes, 1<<10), "batch-bytes",
		"native: limit of a batch before compression")
	own.VisitAll(func(f *pflag.Flag) { n.names = append(n.names, f.Name) })
	set.AddFlagSet(own)
	return n
}

// used returns the name of a flag that was given and is of no use with the NSQ protocol, or "".
func (n *benchNative) used(set *pflag.FlagSet) string {
	for _, name := range n.names {
		if set.Changed(name) {
			return name
		}
	}
	return ""
}

// connect says how clients of the native protocol connect. What happens to connections is written to log.
func (n *benchNative) connect(trust *client.Flags, cfg *load.Config, log io.Writer) error {
	flags := nativeFlags{Flags: *trust, seeds: n.seeds}
	o, err := flags.options(log)
	if err != nil {
		return err
	}
	n.producer.Compression = compression(n.compress)
	cfg.JSON = n.body == "json"
	cfg.Native = &load.Native{Nodes: n.seeds, Options: o, Producer: n.producer}
	return nil
}

// compression reads the value of --compress.
func compression(text string) nodes.Compression {
	switch text {
	case "s2":
		return nodes.CompressS2
	case "zstd":
		return nodes.CompressZstd
	}
	return nodes.CompressNone
}
