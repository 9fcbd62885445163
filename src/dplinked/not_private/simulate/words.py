"""The words of the generated files: names, places, nicknames, misreadings and abbreviations. An underscore stands for a space."""

from __future__ import annotations

# The earlier a name stands, the more frequent it is.
GIVEN_NAMES = """
    james mary john patricia robert jennifer michael linda william elizabeth david barbara richard susan joseph jessica
    thomas sarah charles karen christopher lisa daniel nancy matthew betty anthony margaret mark sandra donald ashley
    steven kimberly paul emily andrew donna joshua michelle kenneth carol kevin amanda brian dorothy george melissa
    timothy deborah ronald stephanie edward rebecca jason sharon jeffrey laura ryan cynthia jacob kathleen gary amy
    nicholas angela eric shirley jonathan anna stephen brenda larry pamela justin emma scott nicole brandon helen
    benjamin samantha samuel katherine gregory christine alexander debra frank rachel patrick carolyn raymond janet
    jack catherine dennis maria jerry heather tyler diane aaron ruth jose julie adam olivia nathan joyce henry virginia
    peter victoria zachary kelly kyle lauren noah christina ethan joan jeremy evelyn walter judith christian megan
    keith andrea roger cheryl terry hannah austin jacqueline sean martha gerald gloria carl teresa harold ann lachlan
    sophie bruce chloe liam charlotte oliver grace lucas isla"""
SURNAMES = """
    smith jones williams brown wilson taylor johnson white martin anderson thompson nguyen thomas walker harris lee ryan
    robinson kelly king davis wright evans roberts green hall wood jackson clarke patel khan lewis james phillips moore
    mitchell scott young watson allen singh baker clark campbell morris hill turner cooper edwards murphy parker miller
    adams collins stewart bell morgan hughes carter murray simpson bennett rogers cook graham marshall cox richardson
    mcdonald ross ward watts kennedy gray russell shaw reid mason wallace harvey palmer mills ellis hunt henderson hunter
    webb grant stevens ford foster ferguson gibson butler knight dixon fraser chapman barnes price johnston fisher hamilton
    lawrence spencer burke cameron armstrong crawford wang li chen zhang liu tran pham le kaur sharma gordon douglas
    mcdougall macdonald mckenzie mackenzie hayes dunn lloyd perry west cole powell long sutton elliott freeman woods
    nicholson payne pearce pearson porter saunders sullivan byrne obrien oconnor walsh doyle lynch quinn daly brennan
    fitzgerald gallagher reynolds griffiths owen rees davies jenkins howard arnold barker bailey ball bishop black bond
    bradley brooks burns burton bird carr carroll craig cross cunningham curtis dawson day dean duncan fleming fletcher
    fox francis french gardner george gilbert goodwin hart harrison hawkins hicks holmes hopkins howe hudson hutchinson
    jordan kerr lane lawson little lowe lucas lyons may mcgrath mclean mcmahon moran morrison newman nelson nolan norris
    oliver osborne parsons peters potter poole rice richards robertson rose rossi rowe sanders schmidt sharp short sims
    skinner stephens stone thomson tucker wade warren weber webster wells wheeler williamson willis winter yang yates
    abbott papadopoulos kowalski nowak russo costa silva fernandez garcia lopez"""
NICKNAMES = """
    james:jim patricia:pat robert:bob jennifer:jenny michael:mick william:bill elizabeth:liz david:dave barbara:barb
    richard:dick susan:sue joseph:joe jessica:jess thomas:tom charles:charlie christopher:chris daniel:dan matthew:matt
    anthony:tony margaret:peg sandra:sandy donald:don steven:steve kimberly:kim andrew:andy joshua:josh kenneth:ken
    amanda:mandy dorothy:dot melissa:mel timothy:tim deborah:deb ronald:ron stephanie:steph edward:ted rebecca:bec
    jeffrey:jeff cynthia:cindy jacob:jake kathleen:kathy nicholas:nick angela:angie jonathan:jon stephen:steve pamela:pam
    nicole:nicky benjamin:ben samantha:sam samuel:sam katherine:kate gregory:greg christine:chris alexander:alex
    frank:frankie rachel:rach patrick:paddy raymond:ray catherine:cathy dennis:den nathan:nate henry:harry virginia:ginny
    peter:pete victoria:vicky zachary:zac christina:tina judith:judy jacqueline:jackie gerald:gerry teresa:terry
    harold:harry lachlan:lachie oliver:ollie charlotte:lottie lucas:luke walter:wally olivia:liv"""
MISREADINGS = """
    ph:f f:ph ck:k c:k k:c ie:y y:ie ee:ea ea:ee ey:y sch:sh tt:t ll:l nn:n ss:s th:t mc:mac ou:u ai:ay z:s v:w oo:u
    m:rn rn:m cl:d l:1 o:0 s:5 e:c u:v h:b"""
ABBREVIATIONS = """
    _street:_st _road:_rd _avenue:_ave _drive:_dr _court:_ct _place:_pl _crescent:_cres _lane:_ln _terrace:_tce"""
# Pieces of the composed names, one of each part in a name.
GIVEN_PARTS = (
    """a ad al am an ar be ca ce da de di el em fa fe ga ha i ja jo ka ke la le li ma mi na ni o ra re ro sa se si ta ti
    vi ya za""",
    "b d l li m ma n na r ri ro s sh t v vi lan mar ren tor",
    "a an ah e el ella en ia ie in ina o on us",
)
SURNAME_PARTS = (
    """ab al an ar ash bar bel ber bin bo bran bur cal car chan clay cor dal dan del don du el fal far fen fin gal gan
    gor gra hal ham har hol hor kal kar kel ko lan lar lin lo mal man mar mel mo nor pal par pen per ran ro sal san sher
    stan ta tar thorn tren tu van ver vi wal war wes win ya za""",
    "a an ar be ber co de den der di ding e en er ga ing ker la le ling lo ma mer ner or ra ri ro ster ti",
    "by dale den er ett ez field ford ham idis in ing ini ley man nen o off ov son ski ston ton well wick wood worth",
)
SUBURB_PARTS = (
    "_ north_ south_ east_ west_ mount_ lake_ upper_ new_",
    """ash ban bel black bright brun bur carl cob cran dar dun ed fair fern glen gran green hamp har hazel hill hurst kel
    kings lan lin long mar mel mill mor nar oak pen red ring rock rose sand sher spring stan stone sun thorn under wall
    war wat wes wil win wood yar""",
    """bank borough bourne bridge brook bury by combe dale den field ford gate ham haven lea leigh mere mont more port
    side stead ton vale view ville well wick""",
)
STREET_PARTS = (
    f"""{SURNAMES} acacia banksia beach bridge chapel church elm grevillea high lake main maple mill oak park pine queen
    railway river station victoria waratah wattle""",
    "_street _road _avenue _drive _court _place _crescent _lane _close _terrace",
)
