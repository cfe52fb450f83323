// What ranks see of the launcher's terminal: nothing, but for the rank of --stdin.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/desk.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

TEST(Terminal, ARankHasASessionOfItsOwn) {
  const base::Output output = run_lockstep(
      {"run", "sh", "-c", "set -- $(cat /proc/$$/stat); echo $(($6 == $$)) $(($5 == $$)) tty $7"});
  EXPECT_EQ(output.out, "r0: 1 1 tty 0\n") << output.err;
}

// It used to be stopped by SIGTTIN, for ever and without a word.
TEST(Terminal, ARankThatAsksForAPasswordFailsAtOnce) {
  Desk desk(lockstep_program() + " run sh -c 'read password < /dev/tty || exit 7'");
  EXPECT_EQ(desk.wait().code, 7) << desk.screen();
  EXPECT_THAT(desk.screen(), HasSubstr("/dev/tty"));
}

TEST(Terminal, OneRankMayHaveIt) {
  Desk desk("before=$(stty -g); " + lockstep_program() +
            " run --nproc-per-node 2 --stdin 1 sh -c '"
            "[ $RANK = 0 ] && { read line; exit 0; }; "
            "stty -echo < /dev/tty; printf \"password: \" > /dev/tty; read word < /dev/tty; "
            "stty echo; echo; printf \"(Pdb) \"; read line; echo $word $line; [ -t 1 ]'; "
            "echo code $?; [ $before = $(stty -g) ] && echo restored");
  EXPECT_TRUE(desk.sees("r1: password: "));
  desk.type("secret\n");
  EXPECT_TRUE(desk.sees("(Pdb) ")) << desk.screen();
  EXPECT_EQ(desk.screen().find("secret"), std::string::npos) << "it was not to be shown";
  desk.type("next\n");
  EXPECT_TRUE(desk.sees("(Pdb) next")) << desk.screen();
  EXPECT_TRUE(desk.sees("r1: secret next\n")) << "and nothing before its end\n" << desk.screen();
  EXPECT_EQ(desk.wait().code, 0) << desk.screen();
  EXPECT_THAT(desk.screen(), HasSubstr("code 0"));
  EXPECT_THAT(desk.screen(), HasSubstr("restored"));
}

TEST(Terminal, ItsSizeIsTheLaunchersNowAndLater) {
  Desk desk(lockstep_program() +
            " run --stdin 0 sh -c 'echo $(stty size); read line; echo $(stty size)'");
  EXPECT_TRUE(desk.sees("r0: 33 77")) << desk.screen();
  desk.resize(44, 88);
  desk.type("\n");
  EXPECT_TRUE(desk.sees("r0: 44 88")) << desk.screen();
  EXPECT_EQ(desk.wait().code, 0) << desk.screen();
}

TEST(Terminal, IsGivenBackThoughTheAgentThatHadItIsKilled) {
  Desk desk("before=$(stty -g); " + lockstep_program() +
            " run --isolation guardian --stdin 0 sh -c '"
            "set -- $(cat /proc/$PPID/stat); kill -9 $4; exec sleep 1000'; echo code $?; "
            "[ $before = $(stty -g) ] && echo restored");
  EXPECT_EQ(desk.wait().code, 0) << desk.screen();
  EXPECT_THAT(desk.screen(), HasSubstr("code 137"));
  EXPECT_THAT(desk.screen(), HasSubstr("restored"));
}

TEST(Terminal, CtrlCStillStopsTheJobAndTheTerminalIsGivenBack) {
  Desk desk("before=$(stty -g); trap : INT; " + lockstep_program() +
            " run --stdin 0 sh -c 'echo ready; exec sleep 1000'; echo code $?; "
            "[ $before = $(stty -g) ] && echo restored");
  EXPECT_TRUE(desk.sees("r0: ready"));
  desk.type("\x03");
  EXPECT_EQ(desk.wait().code, 0) << desk.screen();
  EXPECT_THAT(desk.screen(), HasSubstr("code 130"));
  EXPECT_THAT(desk.screen(), HasSubstr("restored"));
}

TEST(Terminal, InputThatIsNoTerminalIsPassedOnAsItIs) {
  base::FdPair input = base::make_pipe();
  base::write_all(input.write.get(), "a\x03\x04 b\nc", 7);
  input.write.reset();
  const base::Output output = base::run_process(
      {.argv = {lockstep_program(), "run", "--nproc-per-node", "2", "--stdin", "1", "cat"},
       .stdin_fd = input.read.get()},
      base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "r1: a\x03\x04 b\nr1: c\n");
}

TEST(Terminal, ARankThatIsNotThereIsRefused) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node", "2", "--stdin", "2", "true"});
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, HasSubstr("--stdin 2 is not a whole number in [0, 1]"));
  const base::Output hosts = run_lockstep({"run", "--hosts", "a,b", "--stdin", "0", "true"});
  EXPECT_EQ(hosts.status.code, 2);
  EXPECT_THAT(hosts.err, HasSubstr("--hosts"));
}

}  // namespace
}  // namespace lockstep::test
