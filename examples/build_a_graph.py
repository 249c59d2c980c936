"""Build a graph with networkx, place it, and see where its ops went.

The attributes of nodes and edges are described by ``help(enplace.to_networkx)``.
"""

import networkx as nx

import enplace as ep

MIB = 1 << 20

# Four towers read one input, and their results are added: two GPUs can share them.
graph = nx.DiGraph(name="towers")
graph.add_node("input", gpu_us=50)
graph.add_node("add", gpu_us=20)
for tower in range(4):
    for layer in range(3):
        graph.add_node(f"tower_{tower}/dense_{layer}", gpu_us=400, persistent_bytes=64 * MIB)
    layers = [f"tower_{tower}/dense_{layer}" for layer in range(3)]
    nx.add_path(graph, ["input", *layers, "add"], bytes=MIB)

profile = ep.from_networkx(graph)
result = ep.place(profile, "h100-2-nvlink", options={"rounds": 1})
print(result)

for op, device in result.devices.items():
    print(f"{device}  {op}")

# A result goes back into the graph, for networkx's own algorithms.
nx.set_node_attributes(graph, result.devices, "device")
cut = [(a, b) for a, b in graph.edges if graph.nodes[a]["device"] != graph.nodes[b]["device"]]
print(f"{len(cut)} of {graph.number_of_edges()} edges lead to another device")
