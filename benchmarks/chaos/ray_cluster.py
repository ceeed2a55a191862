"""A Ray cluster of several nodes on this machine, in a process of its own; it does what it reads, line by line.

So Ray's threads and settings stay out of the process that kills its nodes.
"""

import sys
from typing import Any

from ray.cluster_utils import Cluster

HERE: dict[str, Any] = {"node_ip_address": "127.0.0.1"}

if __name__ == "__main__":
    # The head has no cores, so that runs are on the others.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **HERE})
    nodes, address = [], cluster.address
    try:
        for line in sys.stdin:
            match line.strip():
                case "add":
                    nodes.append(cluster.add_node(num_cpus=1, **HERE))
                case "kill node":
                    cluster.remove_node(nodes.pop(0), allow_graceful=False)
                case "kill head":
                    cluster.remove_node(cluster.head_node, allow_graceful=False)
            print(address, flush=True)
    finally:  # not by the cluster itself, which would wait for a head that may be dead
        for node in (*nodes, cluster.head_node):
            if node is not None:
                node.kill_all_processes(check_alive=False, allow_graceful=False)
