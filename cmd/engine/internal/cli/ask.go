package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Typed returns nil if the next line of in, the answer to a question, is word. Otherwise its error says with nothing
// that the command did not do what it asked about.
func Typed(in io.Reader, word, nothing string) error {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(line) != word {
		return errors.New("not confirmed: " + nothing)
	}
	return nil
}

// AsksBefore makes cmd ask on a terminal before it does what cannot be taken back. says returns a sentence that says in
// numbers what is lost; the user answers with the word that is the argument of that index. Where no terminal can
// answer, and with --yes, nothing is asked: scripts go on as before.
func (o *Operator) AsksBefore(
	cmd *cobra.Command, word int, says func(ctx context.Context, args []string) (string, error),
) *cobra.Command {
	yes := cmd.Flags().Bool("yes", false, "do not ask on a terminal; where nobody can answer, nothing is asked anyway")
	do := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *yes || !IsTerminal(cmd.InOrStdin()) {
			return do(cmd, args)
		}
		sentence, err := says(cmd.Context(), args)
		if err != nil {
			return WithExitCode(fmt.Errorf("what would be lost is not known, and nothing was changed; --yes does not ask: %w",
				err))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\nType %s to continue: ", sentence, args[word])
		if err := Typed(cmd.InOrStdin(), args[word], "nothing was changed"); err != nil {
			return WithExitCode(err)
		}
		return do(cmd, args)
	}
	return cmd
}
