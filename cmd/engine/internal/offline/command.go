package offline

import (
	"bufio"

	"github.com/spf13/cobra"
)

// Exit codes of the commands.
const (
	exitClean      = 0
	exitCorrupt    = 1
	exitNotChecked = 2
)

// Commands returns fsck, segdump and clogdump. failed makes the error with which the program exits with a code; where
// it gets a nil error, the command has printed what is wrong.
func Commands(failed func(code int, err error) error) []*cobra.Command {
	return []*cobra.Command{fsckCommand(failed), segdumpCommand(failed), clogdumpCommand(failed)}
}

// runs makes cmd call do, which prints to out and returns an exit code.
func runs(
	cmd *cobra.Command, failed func(int, error) error, do func(out *bufio.Writer, args []string) (int, error),
) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := bufio.NewWriter(cmd.OutOrStdout())
		code, err := do(out, args)
		if full := out.Flush(); err == nil && full != nil {
			code, err = exitNotChecked, full
		}
		if code == exitClean {
			return nil
		}
		return failed(code, err)
	}
	return cmd
}
