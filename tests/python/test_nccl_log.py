from lins.profiling.nccl_log import NcclLog, chosen

LOG = """
host:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
host:1:2 [0] NCCL INFO AllGather: 4096 Bytes -> Algo 1 proto 0 time 11.2
host:1:2 [0] NCCL INFO ReduceScatter: 4096 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..3}
host:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
host:1:2 [0] NCCL INFO Broadcast: 8 Bytes -> Algo 1 proto 9 time 1
"""


def test_the_last_line_of_an_operation_counts():
    assert chosen(LOG, "all_reduce") == "tree/ll"
    assert chosen(LOG, "all_gather") == "ring/ll"  # numbers of older releases
    assert chosen(LOG, "reduce_scatter") == "pat/simple"
    assert chosen(LOG, "broadcast") == "ring/9"  # one that is not known
    assert chosen(LOG, "all_to_all") == ""
    assert chosen("", "all_reduce") == ""


def test_a_log_is_read_as_it_grows():
    environment: dict[str, str] = {}
    log = NcclLog(environment)
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["NCCL_DEBUG_SUBSYS"] == "TUNING"
    assert log.algorithm("all_reduce") == ""  # there is no file yet
    with open(environment["NCCL_DEBUG_FILE"], "w") as f:
        f.write(LOG)
        f.flush()
        assert log.algorithm("all_reduce") == "tree/ll"
        assert log.algorithm("all_reduce") == ""  # nothing new
        f.write("x NCCL INFO AllReduce: 8 Bytes -> Algo NVLS proto SIMPLE\n")
        f.flush()
        assert log.algorithm("all_reduce") == "nvls/simple"


def test_settings_of_the_user_stay():
    environment = {"NCCL_DEBUG": "WARN"}
    assert NcclLog(environment).algorithm("all_reduce") == ""
    assert environment == {"NCCL_DEBUG": "WARN"}
