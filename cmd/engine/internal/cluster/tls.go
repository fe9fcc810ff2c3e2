package cluster

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/trust"
	"penstock/netproto"
)

// maxTLSNodes bounds the certificates that one call of init-tls makes.
const maxTLSNodes = 1000

func initTLSCommand() *cobra.Command {
	var list, hosts []string
	cmd := &cobra.Command{
		Use:   "init-tls DIR --nodes NAME=HOST,...",
		Short: "Make an authority and certificates with which nodes trust each other",
		Long: "Make a certificate authority in DIR, and a certificate and a key for each node, and print what to copy\n" +
			"where. NAME is the node-id and HOST what other nodes dial: an IP address or a host name, by default NAME.\n" +
			"Called again, the authority in DIR makes certificates for further nodes; no file is ever overwritten. Whoever\n" +
			"has ca-key.pem can make nodes: keep it off the nodes.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := tlsNodes(list, hosts)
			if err != nil {
				return cli.Fail(cli.ExitUsage, err)
			}
			ca, files, err := trust.Init(args[0], nodes, time.Now())
			if err != nil {
				return cli.Fail(cli.ExitOther, err)
			}
			return printTLS(cmd.OutOrStdout(), ca, files)
		},
	}
	cmd.Flags().StringSliceVar(&list, "nodes", nil, "NAME or NAME=HOST of each node; separate several with commas")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "further HOST for which every certificate is valid, such as 127.0.0.1")
	return cmd
}

func tlsNodes(list, hosts []string) ([]trust.Node, error) {
	if len(list) == 0 || len(list) > maxTLSNodes {
		return nil, fmt.Errorf("init-tls needs --nodes NAME=HOST,... with 1 to %d nodes, for example --nodes "+
			"a=10.0.0.1,b=10.0.0.2,c=10.0.0.3; nothing was made", maxTLSNodes)
	}
	var nodes []trust.Node
	for _, item := range list {
		name, host, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok {
			host = name
		}
		if err := netproto.CheckNodeName(name); err != nil {
			return nil, fmt.Errorf("--nodes: %w; nothing was made", err)
		}
		if slices.ContainsFunc(nodes, func(n trust.Node) bool { return n.Name == name }) {
			return nil, fmt.Errorf("--nodes has %q twice; nothing was made", name)
		}
		nodes = append(nodes, trust.Node{Name: name, Hosts: append([]string{host}, hosts...)})
		for _, h := range nodes[len(nodes)-1].Hosts {
			if err := checkTLSHost(h); err != nil {
				return nil, err
			}
		}
	}
	return nodes, nil
}

func checkTLSHost(host string) error {
	if err := netproto.CheckDialled(host); err != nil {
		return fmt.Errorf("--nodes or --host: %w; nothing was made", err)
	}
	return nil
}

func printTLS(w io.Writer, ca string, files []trust.NodeFiles) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Copy to each node %s and its own two files, and start it with these settings:\n", ca)
	for _, f := range files {
		fmt.Fprintf(&b, "\nnode %s (%s):\n  --cluster-tls-ca %s --cluster-tls-cert %s --cluster-tls-key %s\n", f.Name,
			strings.Join(f.Hosts, ", "), ca, f.Cert, f.Key)
	}
	fmt.Fprintf(&b, "\nKeep %s off the nodes: whoever has it can make nodes. A node reads its files again when they "+
		"change.\n", filepath.Join(filepath.Dir(ca), "ca-key.pem"))
	_, err := io.WriteString(w, b.String())
	return err
}
