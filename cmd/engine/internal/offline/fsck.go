package offline

import (
	"bufio"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func fsckCommand(failed func(int, error) error) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "fsck DATA_PATH", Short: "Verify the data directory of a stopped node", Args: cobra.ExactArgs(1),
		Long: "Verify the data directory of a stopped node, and change nothing in it. It checks the commit log with the\n" +
			"same judgement as a start, and every batch of every segment: both checksums, the chain, dense ids, every\n" +
			"record, and that each index agrees with its segment; and what cuts took from copies.\n\n" +
			"Exit codes: 0 everything is as it was written; 1 something is not, each finding on one line; 2 it could not\n" +
			"be checked.",
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return runs(cmd, failed, func(out *bufio.Writer, args []string) (int, error) {
		report, err := check(args[0])
		if err != nil {
			return exitNotChecked, fmt.Errorf("nothing was checked: %w", err)
		}
		if asJSON {
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			err = enc.Encode(report)
		} else {
			err = report.print(out)
		}
		switch {
		case err != nil:
			return exitNotChecked, err
		case report.FindingCount > 0:
			return exitCorrupt, nil
		}
		return exitClean, nil
	})
}
